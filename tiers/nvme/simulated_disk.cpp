#include "tiers/nvme/simulated_disk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/assert.hpp"
#include "tiers/nvme/data_file.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr int kTransferBytesMax = 1 << 30;  // of one transfer, as the kernel has one

bool all_zero(std::span<const std::byte> bytes) {
  return bytes[0] == std::byte{0} && std::memcmp(bytes.data(), &bytes[1], bytes.size() - 1) == 0;
}

}  // namespace

const char* disk_fault_name(DiskFault fault) {
  switch (fault) {
    case DiskFault::kInterrupted:
      return "interrupted";
    case DiskFault::kShort:
      return "short transfer";
    case DiskFault::kReadError:
      return "read error";
    case DiskFault::kWriteError:
      return "write error";
    case DiskFault::kNoSpace:
      return "no space";
    case DiskFault::kSyncError:
      return "sync error";
    case DiskFault::kTornWrite:
      return "torn write";
    case DiskFault::kLostWrite:
      return "lost write";
    case DiskFault::kMisdirectedWrite:
      return "misdirected write";
    case DiskFault::kStaleRead:
      return "stale read";
    case DiskFault::kFlippedBit:
      return "flipped bit";
    case DiskFault::kPowerCut:
      return "power cut";
  }
  return "unknown";
}

void PowerSupply::cut_after(std::uint64_t operations) {
  const std::scoped_lock lock(mutex_);
  left_ = operations;
}

void PowerSupply::restore() {
  const std::scoped_lock lock(mutex_);
  on_ = true;
  left_ = std::numeric_limits<std::uint64_t>::max();
}

PowerSupply::State PowerSupply::use() {
  const std::scoped_lock lock(mutex_);
  if (!on_) {
    return State::kOff;
  }
  on_ = left_ != 0;
  --left_;
  return on_ ? State::kOn : State::kGoesNow;
}

bool PowerSupply::on() const {
  const std::scoped_lock lock(mutex_);
  return on_;
}

SimulatedDisk::SimulatedDisk(std::string path,
                             const SimulatedDiskOptions& options,
                             PowerSupply& power)
    : path_(std::move(path)), options_(options), power_(power), random_(options.seed) {}

template <class Visit>
void SimulatedDisk::for_each_part(const IoRequest& request, std::uint64_t bytes, Visit visit) {
  std::uint64_t offset = request.offset;
  for (unsigned i = 0; i < request.piece_count; ++i) {
    auto* memory = static_cast<std::byte*>(request.pieces[i].iov_base);
    std::size_t left = std::min<std::uint64_t>(request.pieces[i].iov_len, bytes);
    bytes -= left;
    while (left > 0) {
      const std::size_t in_page = offset % kBytesOfPage;
      const std::size_t count = std::min(left, kBytesOfPage - in_page);
      visit(
          Part{.page = offset / kBytesOfPage, .offset = in_page, .memory = memory, .bytes = count});
      offset += count;
      memory += count;
      left -= count;
    }
  }
}

bool SimulatedDisk::chance(double probability) {
  // No number is drawn for what cannot happen: seeds keep their meaning when faults are added.
  return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}

std::uint64_t SimulatedDisk::below(std::uint64_t limit) {
  return random_() % limit;
}

void SimulatedDisk::record(DiskFault kind, std::uint64_t offset, std::uint64_t bytes, bool write) {
  faults_.push_back({.kind = kind, .offset = offset, .bytes = bytes, .write = write});
}

// 0, or the negated errno of a transfer that does not begin.
int SimulatedDisk::refusal(const IoRequest& request) {
  const FaultRates& rates = options_.rates;
  const auto refuse = [&](DiskFault kind, int error) {
    record(kind, request.offset, request.bytes, request.write);
    return -error;
  };
  if (chance(rates.interrupted)) {
    return refuse(DiskFault::kInterrupted, below(2) == 0 ? EINTR : EAGAIN);
  }
  if (request.write ? chance(rates.write_error) : chance(rates.read_error)) {
    return refuse(request.write ? DiskFault::kWriteError : DiskFault::kReadError, EIO);
  }
  if (request.write && chance(rates.no_space)) {
    return refuse(DiskFault::kNoSpace, ENOSPC);
  }
  return 0;
}

int SimulatedDisk::transfer(const IoRequest& request) {
  const std::scoped_lock lock(mutex_);
  switch (power_.use()) {
    case PowerSupply::State::kOff:
      return -EIO;
    case PowerSupply::State::kGoesNow:
      if (request.write) {
        some_arrives(request);
      }
      return -EIO;
    case PowerSupply::State::kOn:
      break;
  }
  if (const int error = refusal(request); error != 0) {
    return error;
  }
  std::uint64_t bytes = std::min<std::uint64_t>(request.bytes, kTransferBytesMax);
  if (request.write) {
    if (request.offset + bytes > options_.space_bytes) {
      record(DiskFault::kNoSpace, request.offset, bytes, true);
      return -ENOSPC;
    }
  } else {
    bytes = request.offset < size_bytes_ ? std::min(bytes, size_bytes_ - request.offset) : 0;
  }
  if (bytes > 1 && chance(options_.rates.short_transfer)) {
    bytes = 1 + below(bytes - 1);
    record(DiskFault::kShort, request.offset, bytes, request.write);
  }
  if (bytes > 0 && request.write) {
    put(request, bytes);
  } else if (bytes > 0) {
    get(request, bytes);
  }
  return static_cast<int>(bytes);
}

SimulatedDisk::Page SimulatedDisk::current(std::uint64_t page) const {
  const auto found = pages_.find(page);
  if (found == pages_.end()) {
    return nullptr;
  }
  const PageState& state = found->second;
  return state.unflushed.empty() ? state.durable : state.unflushed.back();
}

void SimulatedDisk::put_page(std::uint64_t page, Page contents) {
  if (contents == nullptr && !pages_.contains(page)) {
    return;  // zeros over zeros
  }
  PageState& state = pages_[page];
  if (state.unflushed.empty()) {
    dirty_pages_.push_back(page);
  }
  state.previous = state.unflushed.empty() ? state.durable : state.unflushed.back();
  state.unflushed.push_back(std::move(contents));
}

void SimulatedDisk::put_part(const Part& part) {
  const std::span<const std::byte> source(part.memory, part.bytes);
  if (part.bytes == kBytesOfPage && all_zero(source)) {
    put_page(part.page, nullptr);
    return;
  }
  const Page before = current(part.page);
  auto after =
      before == nullptr ? std::make_shared<PageBytes>() : std::make_shared<PageBytes>(*before);
  std::memcpy(after->data() + part.offset, part.memory, part.bytes);
  put_page(part.page, std::move(after));
}

// The first sectors of one, the rest of the other.
SimulatedDisk::Page SimulatedDisk::torn(const Page& before, const Page& after) {
  auto mixed =
      before == nullptr ? std::make_shared<PageBytes>() : std::make_shared<PageBytes>(*before);
  const std::size_t bytes = (1 + below(kBytesOfPage / kBytesOfSector - 1)) * kBytesOfSector;
  const PageBytes zeros{};
  std::memcpy(mixed->data(), (after == nullptr ? zeros : *after).data(), bytes);
  return mixed;
}

// What the disk accepts, and what it does with it.
void SimulatedDisk::put(const IoRequest& request, std::uint64_t bytes) {
  const FaultRates& rates = options_.rates;
  size_bytes_ = std::max(size_bytes_, request.offset + bytes);
  const std::uint64_t first = request.offset / kBytesOfPage;
  const std::uint64_t pages = (request.offset + bytes - 1) / kBytesOfPage - first + 1;
  const std::uint64_t hit = first + below(pages);
  if (chance(rates.lost_write)) {
    record(DiskFault::kLostWrite, request.offset, bytes, true);
    return;
  }
  if (chance(rates.misdirected_write)) {
    IoRequest elsewhere = request;
    elsewhere.offset = below(size_bytes_ / kBytesOfPage - pages + 1) * kBytesOfPage;
    record(DiskFault::kMisdirectedWrite, request.offset, bytes, true);
    record(DiskFault::kMisdirectedWrite, elsewhere.offset, bytes, true);
    for_each_part(elsewhere, bytes, [&](const Part& part) { put_part(part); });
    return;
  }
  const Page before = current(hit);
  for_each_part(request, bytes, [&](const Part& part) { put_part(part); });
  if (chance(rates.torn_write)) {
    record(DiskFault::kTornWrite, hit * kBytesOfPage, kBytesOfPage, true);
    const Page mixed = torn(before, current(hit));
    put_page(hit, mixed);
  }
  if (chance(rates.flipped_bit)) {
    record(DiskFault::kFlippedBit, hit * kBytesOfPage, kBytesOfPage, true);
    const Page whole = current(hit);
    auto damaged =
        whole == nullptr ? std::make_shared<PageBytes>() : std::make_shared<PageBytes>(*whole);
    (*damaged)[below(kBytesOfPage)] ^= std::byte{1} << below(8);
    put_page(hit, std::move(damaged));
  }
}

void SimulatedDisk::get(const IoRequest& request, std::uint64_t bytes) {
  const FaultRates& rates = options_.rates;
  const std::uint64_t first = request.offset / kBytesOfPage;
  const std::uint64_t pages = (request.offset + bytes - 1) / kBytesOfPage - first + 1;
  const std::uint64_t hit = first + below(pages);
  const bool stale = chance(rates.stale_read);
  const bool flipped = chance(rates.flipped_bit);
  if (stale || flipped) {
    record(stale ? DiskFault::kStaleRead : DiskFault::kFlippedBit,
           hit * kBytesOfPage,
           kBytesOfPage,
           false);
  }
  for_each_part(request, bytes, [&](const Part& part) {
    Page page = current(part.page);
    if (stale && part.page == hit) {
      const auto found = pages_.find(hit);
      page = found == pages_.end() ? nullptr : found->second.previous;
    }
    if (page == nullptr) {
      std::memset(part.memory, 0, part.bytes);
    } else {
      std::memcpy(part.memory, page->data() + part.offset, part.bytes);
    }
    if (!stale && flipped && part.page == hit) {
      part.memory[below(part.bytes)] ^= std::byte{1} << below(8);
    }
  });
}

// A write that the power cut: each page whole, in part, or not at all.
void SimulatedDisk::some_arrives(const IoRequest& request) {
  record(DiskFault::kPowerCut, request.offset, request.bytes, true);
  size_bytes_ = std::max(size_bytes_, request.offset + request.bytes);
  for_each_part(request, request.bytes, [&](const Part& part) {
    const std::uint64_t die = below(3);
    if (die == 0) {
      return;
    }
    const Page before = current(part.page);
    put_part(part);
    if (die == 1) {
      put_page(part.page, torn(before, current(part.page)));
    }
  });
}

void SimulatedDisk::arrive_in_part(const IoRequest& request) {
  const std::scoped_lock lock(mutex_);
  some_arrives(request);
}

void SimulatedDisk::restart() {
  const std::scoped_lock lock(mutex_);
  HEADRACE_ASSERT(power_.on(), "a disk starts when the power is on");
  for (const std::uint64_t index : dirty_pages_) {
    PageState& state = pages_[index];
    // Any version since the last flush, or the durable one; now and then a mix of two.
    const std::size_t chosen = below(state.unflushed.size() + 1);
    const Page before = chosen == 0 ? state.durable : state.unflushed[chosen - 1];
    const bool tear = chosen < state.unflushed.size() && below(4) == 0;
    state.durable = tear ? torn(before, state.unflushed[chosen]) : before;
    state.previous = state.durable;
    state.unflushed.clear();
  }
  dirty_pages_.clear();
}

Status SimulatedDisk::sync() {
  const std::scoped_lock lock(mutex_);
  const Error failed = errno_error(fmt::format("nvme tier: cannot make '{}' durable", path_), EIO)
                           .with_hint("the drive reports a fault: see the kernel's log (dmesg)");
  now_ns_ += options_.latency_ns;
  if (power_.use() != PowerSupply::State::kOn) {
    return failed;
  }
  if (chance(options_.rates.sync_error)) {
    record(DiskFault::kSyncError, 0, size_bytes_, true);
    return failed;
  }
  for (const std::uint64_t index : dirty_pages_) {
    PageState& state = pages_[index];
    state.durable = std::move(state.unflushed.back());
    state.unflushed.clear();
  }
  dirty_pages_.clear();
  return {};
}

Status SimulatedDisk::allocate(std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  if (bytes > options_.space_bytes) {
    return does_not_fit_error(
               fmt::format("nvme tier: cannot reserve {} bytes for '{}'", bytes, path_))
        .with_hint("free space there, or use another folder");
  }
  size_bytes_ = std::max(size_bytes_, bytes);
  return {};
}

void SimulatedDisk::cut(std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  size_bytes_ = std::min(size_bytes_, bytes);
}

std::uint64_t SimulatedDisk::bytes() const {
  const std::scoped_lock lock(mutex_);
  return size_bytes_;
}

// Complete or an Error, as DataFile's transfers are.
Status SimulatedDisk::synchronous(IoRequest request, const char* operation) {
  while (request.bytes > 0) {
    const int result = transfer(request);
    if (result == -EINTR || result == -EAGAIN) {
      continue;
    }
    if (result < 0) {
      return transfer_error(operation, path_, request.offset, -result);
    }
    const auto moved = static_cast<std::uint64_t>(result);
    if (moved == 0) {
      return truncated_error(path_, request.offset);
    }
    advance_to(now_ns() + options_.latency_ns +
               static_cast<std::int64_t>(static_cast<double>(moved) / options_.bytes_per_s * 1e9));
    request.offset += moved;
    request.bytes -= moved;
    request.pieces[0].iov_base = static_cast<std::byte*>(request.pieces[0].iov_base) + moved;
    request.pieces[0].iov_len -= moved;
  }
  return {};
}

Status SimulatedDisk::read(std::uint64_t offset, std::span<std::byte> target) {
  IoRequest request{.write = false, .offset = offset, .bytes = target.size()};
  request.pieces[0] = {target.data(), target.size()};
  return synchronous(request, "read");
}

Status SimulatedDisk::write(std::uint64_t offset, std::span<const std::byte> source) {
  IoRequest request{.write = true, .offset = offset, .bytes = source.size()};
  // One request type serves both directions; a write only reads from it.
  auto* memory =
      const_cast<std::byte*>(source.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  request.pieces[0] = {memory, source.size()};
  return synchronous(request, "write");
}

void SimulatedDisk::set_rates(const FaultRates& rates) {
  const std::scoped_lock lock(mutex_);
  options_.rates = rates;
}

void SimulatedDisk::flip_bit(std::uint64_t offset, unsigned bit) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t index = offset / kBytesOfPage;
  const Page whole = current(index);
  auto damaged =
      whole == nullptr ? std::make_shared<PageBytes>() : std::make_shared<PageBytes>(*whole);
  (*damaged)[offset % kBytesOfPage] ^= std::byte{1} << bit;
  put_page(index, std::move(damaged));
}

void SimulatedDisk::truncate(std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  size_bytes_ = std::min(size_bytes_, bytes);
}

std::vector<InjectedFault> SimulatedDisk::faults() const {
  const std::scoped_lock lock(mutex_);
  return faults_;
}

std::int64_t SimulatedDisk::now_ns() const {
  const std::scoped_lock lock(mutex_);
  return now_ns_;
}

void SimulatedDisk::advance_to(std::int64_t now_ns) {
  const std::scoped_lock lock(mutex_);
  now_ns_ = std::max(now_ns_, now_ns);
}

std::int64_t SimulatedDisk::draw_jitter_ns() {
  const std::scoped_lock lock(mutex_);
  return options_.jitter_ns > 0
             ? static_cast<std::int64_t>(below(static_cast<std::uint64_t>(options_.jitter_ns)))
             : 0;
}

}  // namespace headrace::tiers::nvme
