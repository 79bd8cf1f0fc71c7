// One operation of a lane: how its extent is cut into parts, which bytes have moved, which
// sub-blocks are summed. Internal to tiers/nvme.
//
// Positions count from the extent's beginning: the header, then the payload. A part is a chunk of
// the payload; the first one carries the header too. A read hands them over in order, and sums a
// sub-block once it and the header have arrived; a write hands the first part over last, when all
// sums are in the header. So sums are made while other bytes are in flight, and a header that is
// there says that the write came to its end.
// Invariant: each position is handed over once, each sub-block claimed once; complete() means that
// all bytes have moved and all sums are made or checked. Memory is taken at construction. Thread:
// the engine's, but for sum(), which another may call for what was claimed. Failure: claim_sums()
// and sum() return what the store says.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/error.hpp"
#include "tiers/nvme/store.hpp"

namespace headrace::tiers::nvme {

class Transfer {
 public:
  struct Start {
    ExtentKey key;
    ExtentPlace place;
    std::byte* payload = nullptr;  // a write only reads from it
    bool write = false;
    std::int64_t step = 0;  // of a write
    bool sums = true;       // of a read: whether they are checked
    std::uint64_t chunk_bytes = 0;
  };

  struct Part {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t payload_bytes = 0;
  };

  // Sub-blocks to be summed, in the order in which they could be.
  struct Blocks {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  // `header` is for the largest extent, whose payload has so many sub-blocks.
  Transfer(std::span<std::byte> header, std::uint64_t sub_blocks_max);

  void begin(const Store& store, const Start& start);

  // What to hand over next. Nothing: all was, or the last part of a write waits for sums.
  [[nodiscard]] std::optional<Part> next() const;
  void hand_over();  // what next() said
  // The memory of a part; returns the number of pieces.
  [[nodiscard]] unsigned pieces(const Part& part, std::array<iovec, 2>& pieces) const;
  void moved(std::uint64_t begin, std::uint64_t end);

  // There is something to claim.
  [[nodiscard]] bool sums_pending() const;

  // All that keeps it from going on is sums.
  [[nodiscard]] bool waits_for_sums() const {
    return start_.write ? turns_ + 1 == chunks_ : moved_bytes_ == total_bytes();
  }

  // What to sum next: so many sub-blocks at most. Then sum() them, then say so by summed().
  [[nodiscard]] Result<Blocks> claim_sums(const Store& store, std::uint64_t blocks_max);
  // Makes or checks the sums of what was claimed. Any thread, beside the engine's other calls.
  [[nodiscard]] Status sum(const Store& store, const Blocks& blocks) const;
  void summed(const Blocks& blocks);

  // Requests are in flight, or sums claimed and not yet made: its memory is in use.
  [[nodiscard]] bool under_way() const { return in_flight > 0 || claimed_ > sums_; }

  // The transfer goes on once this is summed.
  [[nodiscard]] bool last(const Blocks& blocks) const { return blocks.end == blocks_; }

  [[nodiscard]] bool complete() const {
    return moved_bytes_ == total_bytes() && sums_ == blocks_ && (start_.write || header_checked_);
  }

  [[nodiscard]] const ExtentPlace& place() const { return start_.place; }

  [[nodiscard]] const ExtentKey& key() const { return start_.key; }

  [[nodiscard]] std::int64_t step() const { return start_.step; }

  [[nodiscard]] bool is_write() const { return start_.write; }

  [[nodiscard]] std::uint64_t moved_bytes() const { return moved_bytes_; }

  [[nodiscard]] std::uint64_t total_bytes() const {
    return start_.place.header_bytes + start_.place.payload_bytes;
  }

  // Of the engine's bookkeeping.
  int in_flight = 0;               // requests
  std::uint64_t passed_bytes = 0;  // of others, handed over while this one could have been
  std::int64_t begin_ns = 0;
  std::uint64_t number = 0;  // in the order in which transfers began

 private:
  [[nodiscard]] std::span<std::byte> header() const {
    return header_.first(start_.place.header_bytes);
  }

  [[nodiscard]] std::span<const std::byte> block(std::uint64_t index) const;
  [[nodiscard]] std::uint64_t chunk(std::uint64_t turn) const;

  std::span<std::byte> header_;
  Start start_;
  std::uint64_t chunks_ = 0;
  std::uint64_t turns_ = 0;  // chunks handed over
  std::uint64_t moved_bytes_ = 0;
  std::uint64_t header_moved_ = 0;
  std::uint64_t blocks_ = 0;            // to be summed
  std::uint64_t claimed_ = 0;           // of those
  std::uint64_t sums_ = 0;              // made or checked
  bool header_checked_ = false;         // of a read
  std::vector<std::uint32_t> arrived_;  // of a read: bytes of each sub-block
  std::vector<std::uint32_t> ready_;    // of a read: sub-blocks that are whole, as they came
  std::uint64_t ready_count_ = 0;
};

}  // namespace headrace::tiers::nvme
