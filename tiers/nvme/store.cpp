// A store that is open: its facts, the places and headers of its extents, synchronous transfers.
// Making one is in store_format.cpp and store_create.cpp, opening in store_load.cpp, commits in
// store_commit.cpp, verification in store_verify.cpp.
#include "tiers/nvme/store.hpp"

#include <algorithm>
#include <utility>

#include "core/assert.hpp"
#include "tiers/nvme/store_state.hpp"

namespace headrace::tiers::nvme {
Store::Store(std::unique_ptr<StoreState> state) : state_(std::move(state)) {}

Store::~Store() {
  give_up_spill();
}

const std::string& Store::id() const {
  return state_->id;
}

const std::string& Store::path() const {
  return state_->path;
}

const std::string& Store::data_path(std::uint32_t folder) const {
  return file(folder).path();
}

std::uint64_t Store::bytes() const {
  std::uint64_t bytes = 0;
  for (const StoreFile& file : state_->files) {
    bytes += file.block.file_bytes;
  }
  return bytes;
}

const StoreContents& Store::contents() const {
  return state_->contents;
}

const std::optional<CommitRecord>& Store::last_commit() const {
  return state_->last_commit;
}

std::uint32_t Store::slots() const {
  return state_->block().slots;
}

bool Store::undo_slot() const {
  return format::has_undo_slot(state_->block());
}

bool Store::dirty() const {
  return state_->dirty.load(std::memory_order_acquire);
}

std::uint32_t Store::folder_count() const {
  return static_cast<std::uint32_t>(state_->files.size());
}

std::uint32_t Store::folder_of(std::uint32_t unit, std::uint32_t tile) const {
  return state_->tiles[state_->tile_index(unit, tile)].folder_index;
}

std::uint32_t Store::folder_of(const ExtentKey& key) const {
  return state_->place(key, 0).folder;
}

BlockFile& Store::file(std::uint32_t folder) const {
  HEADRACE_ASSERT(folder < state_->files.size(), "the store has the folder");
  return *state_->files[folder].file;
}

bool Store::direct_io() const {
  return std::all_of(state_->files.begin(), state_->files.end(), [](const StoreFile& file) {
    return file.file->direct_io();
  });
}

bool Store::writable() const {
  return state_->access == Access::kWrite;
}

bool Store::ready_for_writes() const {
  return state_->access == Access::kWrite && !state_->failure && (slots() > 1 || dirty());
}

ExtentPlace Store::read_place(const ExtentKey& key) const {
  return state_->read_place(key);
}

ExtentPlace Store::write_place(const ExtentKey& key, std::int64_t step) const {
  return state_->write_place(key, step);
}

ExtentPlace Store::home_place(const ExtentKey& key) const {
  return state_->place(key, 0);
}

std::int64_t Store::step_of(const ExtentKey& key) const {
  return state_->step(key);
}

void Store::wrote(const ExtentKey& key, const ExtentPlace& place, std::int64_t step) {
  HEADRACE_ASSERT(step >= 0, "a write has a step");
  state_->wrote(key, place.slot, step);
}

void Store::speculate(std::int64_t step) {
  HEADRACE_ASSERT(step >= 0, "a write has a step");
  HEADRACE_ASSERT(undo_slot(), "a store without an undo slot takes no speculative writes");
  HEADRACE_ASSERT(!state_->speculating(), "what was written speculatively is settled");
  state_->speculative_step.store(step, std::memory_order_release);
}

void Store::settle(bool keep) {
  state_->settle(keep);
}

std::string Store::describe(const ExtentKey& key) const {
  return state_->describe(key, state_->read_place(key));
}

std::string Store::describe(const ExtentKey& key, const ExtentPlace& place) const {
  return state_->describe(key, place);
}

void Store::make_header(const ExtentKey& key,
                        const ExtentPlace& place,
                        std::span<const std::byte> payload,
                        std::int64_t step,
                        std::span<std::byte> header) const {
  format::encode_extent_header(state_->identity(key, place), step, payload, header);
}

void Store::begin_header(const ExtentKey& key,
                         const ExtentPlace& place,
                         std::int64_t step,
                         std::span<std::byte> header) const {
  format::begin_extent_header(state_->identity(key, place), step, header);
}

void Store::set_sum(std::span<std::byte> header,
                    std::uint64_t sub_block,
                    std::span<const std::byte> bytes) {
  format::set_extent_sum(header, sub_block, hash_bytes(bytes));
}

void Store::finish_header(std::span<std::byte> header) {
  format::seal_extent_header(header);
}

Status Store::check_header(const ExtentKey& key,
                           const ExtentPlace& place,
                           std::span<const std::byte> header) const {
  if (auto problem =
          format::extent_header_problem(state_->identity(key, place), step_of(key), header)) {
    return state_->corrupt(key, place, std::move(*problem));
  }
  return {};
}

Status Store::check_sum(const ExtentKey& key,
                        const ExtentPlace& place,
                        std::span<const std::byte> header,
                        std::uint64_t sub_block,
                        std::span<const std::byte> bytes) const {
  if (hash_bytes(bytes) != format::extent_sum(header, sub_block)) {
    return state_->corrupt(key, place, sub_block_problem(place, sub_block));
  }
  return {};
}

Status Store::check(const ExtentKey& key,
                    const ExtentPlace& place,
                    std::span<const std::byte> header,
                    std::span<const std::byte> payload) const {
  HEADRACE_ASSERT(payload.size() == place.payload_bytes, "the payload has the extent's length");
  HEADRACE_TRY(check_header(key, place, header));
  return check_sums(key, place, header, payload);
}

Status Store::check_sums(const ExtentKey& key,
                         const ExtentPlace& place,
                         std::span<const std::byte> header,
                         std::span<const std::byte> payload) const {
  for (std::uint64_t i = 0; i < format::sum_count(payload.size()); ++i) {
    const std::uint64_t begin = i * kSumBlockBytes;
    const auto bytes = std::min<std::uint64_t>(kSumBlockBytes, payload.size() - begin);
    HEADRACE_TRY(check_sum(key, place, header, i, payload.subspan(begin, bytes)));
  }
  return {};
}

Status Store::read_now(const ExtentKey& key, std::span<std::byte> payload) {
  const ExtentPlace at = read_place(key);
  HEADRACE_ASSERT(payload.size() == at.payload_bytes, "the payload has the extent's length");
  const std::span<std::byte> header = state_->header.bytes().first(at.header_bytes);
  HEADRACE_TRY(file(at.folder).read(at.offset, header));
  HEADRACE_TRY(file(at.folder).read(at.offset + at.header_bytes, payload));
  return check(key, at, header, payload);
}

Status Store::read_committed(const ExtentKey& key,
                             std::span<std::byte> payload,
                             std::span<std::byte> header) const {
  HEADRACE_ASSERT(last_commit().has_value(), "there is a commit");
  const std::size_t extent = state_->extent_index(key);
  const format::MapEntry& entry = state_->committed[extent / 2];
  const ExtentPlace at = state_->place(key, entry.slot);
  HEADRACE_ASSERT(payload.size() == at.payload_bytes, "the payload has the extent's length");
  const std::span<std::byte> head = header.first(at.header_bytes);
  HEADRACE_TRY(file(at.folder).read(at.offset, head));
  HEADRACE_TRY(file(at.folder).read(at.offset + at.header_bytes, payload));
  const std::int64_t step = extent % 2 == 0 ? entry.param_step : entry.state_step;
  if (auto problem = format::extent_header_problem(state_->identity(key, at), step, head)) {
    return state_->corrupt(key, at, std::move(*problem));
  }
  return check_sums(key, at, head, payload);
}

std::size_t Store::header_bytes_max() const {
  return state_->header.bytes().size();
}

Status Store::write_now(const ExtentKey& key,
                        std::span<const std::byte> payload,
                        std::int64_t step) {
  HEADRACE_ASSERT(step >= 0, "a write has a step");
  const ExtentPlace at = write_place(key, step);
  HEADRACE_ASSERT(payload.size() == at.payload_bytes, "the payload has the extent's length");
  HEADRACE_TRY(mark_dirty());
  if (state_->failure) {
    return *state_->failure;
  }
  const std::span<std::byte> header = state_->header.bytes().first(at.header_bytes);
  make_header(key, at, payload, step, header);
  HEADRACE_TRY(file(at.folder).write(at.offset, header));
  HEADRACE_TRY(file(at.folder).write(at.offset + at.header_bytes, payload));
  wrote(key, at, step);
  return {};
}

}  // namespace headrace::tiers::nvme
