// The store: one run's tiles on NVMe, as extents with headers and checksums, in
// `<folder>/<id>/data` (docs/store_format.md has every byte).
//
// A store holds, for every tile of every unit, a param extent and (unless the tile is frozen) a
// state extent. This version has one slot per tile: `mark_dirty` before the first write, `commit`
// at a clean end; a dirty store is refused for resume. The superblock has two copies and a
// generation, the commit record goes to one of two map extents, so that slots can be added without
// a new layout.
//
// Invariants: the data file is preallocated (a full disk is found at create); mode 0600; one writer
// (a lock), many readers; a header that does not match what is expected (id, unit, tile, kind,
// place, length, step) or a sub-block whose XXH3 differs is corrupt data (exit code 4). Threads:
// create/open/commit by one thread at a time; read_now/write_now likewise; the engine
// (io_engine.hpp) reads the extent table only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace headrace::tiers::nvme {

inline constexpr std::size_t kPageBytes = 4096;  // headers, offsets and lengths are multiples of it
inline constexpr std::size_t kSumBlockBytes = std::size_t{128} * 1024;  // sub-block of a checksum

enum class ExtentKind : std::uint32_t { kParam = 1, kState = 2 };

struct ExtentKey {
  std::uint32_t unit = 0;
  std::uint32_t tile = 0;
  ExtentKind kind = ExtentKind::kParam;
};

// One tile as the model lays it out. Bytes are payload bytes: multiples of kPageBytes. state_bytes
// = 0: a frozen tile.
struct TileBytes {
  std::uint32_t unit = 0;
  std::uint32_t tile = 0;
  std::uint64_t param_bytes = 0;
  std::uint64_t state_bytes = 0;
};

// What a store is made for. `tensor_table` is JSON (units, tensors, names, shapes, offsets, tiles,
// dtypes): enough to export without the model's code.
struct StoreContents {
  std::vector<TileBytes> tiles;  // unit-major, tile ascending
  std::string tensor_table;
  std::string layout_tag;  // "fp32/fp32": param and state format
  std::string run_dir{};   // of the run that the store belongs to, for `store list`; may be empty
};

// A commit: everything that a resume needs beside the tiles. `run_state` is JSON owned by train/
// (step, update count, data position, keys that make the numbers, …); the numbers that the store
// itself checks are fields.
struct CommitRecord {
  std::uint64_t generation = 0;  // set by commit()
  std::int64_t step = 0;         // steps finished
  std::int64_t update_count = 0;
  std::string run_state{};
};

struct StoreOptions {
  std::string folder;              // must exist or its parent must
  bool direct_io_required = true;  // false ("auto"): fall back to buffered I/O where the filesystem
                                   // refuses O_DIRECT, with a log line
  std::optional<std::uint64_t> space_bytes_max{};
};

struct ExtentPlace {
  std::uint64_t offset = 0;        // of the header; the payload follows it after header_bytes
  std::uint32_t header_bytes = 0;  // a multiple of kPageBytes: holds the sums of all sub-blocks
  std::uint64_t payload_bytes = 0;
};

struct StoreState;

class Store {
 public:
  enum class Access : std::uint8_t { kRead, kWrite };

  // Makes `<folder>/<new id>/data`, preallocated. Errors: read-only folder, tmpfs, no space (needed
  // and free bytes), not a directory.
  [[nodiscard]] static Result<std::unique_ptr<Store>> create(const StoreOptions& options,
                                                             const StoreContents& contents);
  // Opens `<folder>/<id>`. Errors: missing, foreign or newer format, corrupt superblock, locked by
  // another writer.
  [[nodiscard]] static Result<std::unique_ptr<Store>> open(const std::string& folder,
                                                           const std::string& id,
                                                           Access access,
                                                           bool direct_io_required = true);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  [[nodiscard]] const std::string& id() const;    // 32 hex digits
  [[nodiscard]] const std::string& path() const;  // <folder>/<id>
  [[nodiscard]] const std::string& data_path() const;
  [[nodiscard]] std::uint64_t bytes() const;  // of the data file
  [[nodiscard]] const StoreContents& contents() const;
  [[nodiscard]] const std::optional<CommitRecord>& last_commit() const;
  [[nodiscard]] bool dirty() const;  // written since the last commit
  [[nodiscard]] int fd() const;
  [[nodiscard]] bool direct_io() const;
  [[nodiscard]] ExtentPlace place(const ExtentKey& key) const;

  // The step of the last write of an extent, as headers must say it (-1: never written). Set by
  // writers (write_now, the engine).
  [[nodiscard]] std::int64_t step_of(const ExtentKey& key) const;
  void set_step_of(const ExtentKey& key, std::int64_t step);

  // "unit 3, tile 0 (state) of '<path>/data', at offset 8192": for messages.
  [[nodiscard]] std::string describe(const ExtentKey& key) const;

  // Builds the header of an extent (with the sums of payload) into `header` (place().header_bytes);
  // checks header and payload on the way back.
  void make_header(const ExtentKey& key,
                   std::span<const std::byte> payload,
                   std::int64_t step,
                   std::span<std::byte> header) const;
  [[nodiscard]] Status check(const ExtentKey& key,
                             std::span<const std::byte> header,
                             std::span<const std::byte> payload) const;

  // Synchronous I/O of one extent's payload (load, export, commit of tiles that live in RAM).
  // Memory may have any alignment (bounced if it must).
  [[nodiscard]] Status read_now(const ExtentKey& key, std::span<std::byte> payload);
  [[nodiscard]] Status write_now(const ExtentKey& key,
                                 std::span<const std::byte> payload,
                                 std::int64_t step);

  // Sets the dirty flag durably before the first write after a commit; no-op when already dirty.
  [[nodiscard]] Status mark_dirty();
  // All tiles must have been written. Writes the map, fdatasync, superblock with generation + 1,
  // fdatasync; clears the dirty flag.
  [[nodiscard]] Status commit(CommitRecord record);

  // Reads every extent and checks it. `on_problem` gets each; returns the number of extents
  // checked.
  [[nodiscard]] Result<std::uint64_t> verify(const std::function<void(const Error&)>& on_problem);

 private:
  explicit Store(std::unique_ptr<StoreState> state);
  std::unique_ptr<StoreState> state_;
};

// What `headrace store list`, `inspect` and `store remove` need: never follows a symlink out of the
// folder, never touches what is not a store.
struct StoreListing {
  std::string id, path, run_dir;  // run_dir: as recorded at create, may be empty
  std::uint64_t bytes = 0;
  std::int64_t step = -1;  // of the last commit; -1: none
  bool dirty = false;
  bool locked = false;
  std::string problem;  // why it cannot be used; empty: nothing found (extents are not read)
};

[[nodiscard]] Result<std::vector<StoreListing>> list_stores(const std::string& folder);
[[nodiscard]] Status remove_store(const std::string& folder, const std::string& id);

}  // namespace headrace::tiers::nvme
