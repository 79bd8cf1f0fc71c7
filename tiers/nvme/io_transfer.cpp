#include "tiers/nvme/io_transfer.hpp"

#include <algorithm>

#include "core/assert.hpp"
#include "tiers/nvme/format.hpp"

namespace headrace::tiers::nvme {
Transfer::Transfer(std::span<std::byte> header, std::uint64_t sub_blocks_max)
    : header_(header), arrived_(sub_blocks_max), ready_(sub_blocks_max) {}

void Transfer::begin(const Store& store, const Start& start) {
  start_ = start;
  const std::uint64_t bytes = start.place.payload_bytes;
  chunks_ = (bytes + start.chunk_bytes - 1) / start.chunk_bytes;
  blocks_ = start.sums ? format::sum_count(bytes) : 0;
  turns_ = moved_bytes_ = header_moved_ = claimed_ = sums_ = ready_count_ = 0;
  header_checked_ = false;
  in_flight = 0;
  passed_bytes = 0;
  if (start.write) {
    store.begin_header(start.key, start.place, start.step, header());
  } else {
    std::fill_n(arrived_.begin(), blocks_, 0U);
  }
}

// The chunk that is handed over at this turn: a write's first one comes last.
std::uint64_t Transfer::chunk(std::uint64_t turn) const {
  return start_.write ? (turn + 1) % chunks_ : turn;
}

std::optional<Transfer::Part> Transfer::next() const {
  if (turns_ == chunks_) {
    return std::nullopt;
  }
  const std::uint64_t index = chunk(turns_);
  if (index == 0 && start_.write && sums_ < blocks_) {
    return std::nullopt;
  }
  const std::uint64_t header_bytes = start_.place.header_bytes;
  const std::uint64_t from = index * start_.chunk_bytes;
  const std::uint64_t to = std::min(from + start_.chunk_bytes, start_.place.payload_bytes);
  return Part{.begin = index == 0 ? 0 : header_bytes + from,
              .end = header_bytes + to,
              .payload_bytes = to - from};
}

void Transfer::hand_over() {
  ++turns_;
}

unsigned Transfer::pieces(const Part& part, std::array<iovec, 2>& pieces) const {
  const std::uint64_t header_bytes = start_.place.header_bytes;
  unsigned count = 0;
  if (part.begin < header_bytes) {
    pieces[count++] = {header_.data() + part.begin, std::min(part.end, header_bytes) - part.begin};
  }
  if (part.end > header_bytes) {
    const std::uint64_t from = std::max(part.begin, header_bytes) - header_bytes;
    pieces[count++] = {start_.payload + from, part.end - header_bytes - from};
  }
  return count;
}

void Transfer::moved(std::uint64_t begin, std::uint64_t end) {
  moved_bytes_ += end - begin;
  const std::uint64_t header_bytes = start_.place.header_bytes;
  if (begin < header_bytes) {
    header_moved_ += std::min(end, header_bytes) - begin;
  }
  if (start_.write || !start_.sums || end <= header_bytes) {
    return;
  }
  std::uint64_t at = std::max(begin, header_bytes) - header_bytes;
  const std::uint64_t payload_end = end - header_bytes;
  while (at < payload_end) {
    const std::uint64_t index = at / kSumBlockBytes;
    const std::uint64_t next = std::min((index + 1) * kSumBlockBytes, payload_end);
    arrived_[index] += static_cast<std::uint32_t>(next - at);
    if (arrived_[index] == block(index).size()) {
      ready_[ready_count_++] = static_cast<std::uint32_t>(index);
    }
    at = next;
  }
}

std::span<const std::byte> Transfer::block(std::uint64_t index) const {
  const std::uint64_t at = index * kSumBlockBytes;
  return {start_.payload + at,
          std::min<std::uint64_t>(kSumBlockBytes, start_.place.payload_bytes - at)};
}

bool Transfer::sums_pending() const {
  if (start_.write) {
    return claimed_ < blocks_;
  }
  return header_moved_ == start_.place.header_bytes &&
         (!header_checked_ || claimed_ < ready_count_);
}

Result<Transfer::Blocks> Transfer::claim_sums(const Store& store, std::uint64_t blocks_max) {
  if (!start_.write && !header_checked_) {
    HEADRACE_TRY(store.check_header(start_.key, start_.place, header()));
    header_checked_ = true;
  }
  const std::uint64_t ready = start_.write ? blocks_ : ready_count_;
  const std::uint64_t begin = claimed_;
  claimed_ = std::min(begin + blocks_max, ready);
  return Blocks{.begin = begin, .end = claimed_};
}

Status Transfer::sum(const Store& store, const Blocks& blocks) const {
  for (std::uint64_t i = blocks.begin; i < blocks.end; ++i) {
    if (start_.write) {
      Store::set_sum(header(), i, block(i));
    } else {
      const std::uint64_t index = ready_[i];
      HEADRACE_TRY(store.check_sum(start_.key, start_.place, header(), index, block(index)));
    }
  }
  return {};
}

void Transfer::summed(const Blocks& blocks) {
  sums_ += blocks.end - blocks.begin;
  if (start_.write && sums_ == blocks_) {
    Store::finish_header(header());
  }
}

}  // namespace headrace::tiers::nvme
