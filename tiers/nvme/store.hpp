// The store: one run's tiles on NVMe, as extents with headers and checksums, in
// `<folder>/<id>/data` of one or several folders (docs/store_format.md has every byte).
//
// A store holds, for every tile of every unit, a param extent and (unless the tile is frozen) a
// state extent, in two slots or one. With two slots a tile is written to the slot that the last
// commit does not name, so that the commit stays whole until the next one is; a resume takes the
// last commit, whatever was written after it. With one slot (durability "none"): `mark_dirty`
// before the first write, `commit` at a clean end; a dirty store is refused for resume.
//
// An undo slot, one more, takes speculative writes: those of a step of which is not known yet
// whether it counts. What counted so far stays beside them until `settle` keeps or forgets them.
//
// Invariants: data files are preallocated (a full disk is found at create); mode 0600; one writer
// (a lock), many readers; a header that does not match what is expected (id, unit, tile, kind,
// slot, place, length, step) or a sub-block whose XXH3 differs is corrupt data (exit code 4); after
// a commit that failed nothing more is written. Threads: create/open/format/load/commit by one
// thread at a time; read_now/write_now likewise; an engine's thread calls the functions of places
// and headers, and wrote().
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
#include "core/hash.hpp"
#include "tiers/nvme/block_file.hpp"

namespace headrace::tiers::nvme {

inline constexpr std::size_t kPageBytes = 4096;  // headers, offsets and lengths are multiples of it
inline constexpr std::size_t kSumBlockBytes = std::size_t{128} * 1024;  // sub-block of a checksum

enum class ExtentKind : std::uint32_t { kParam = 1, kState = 2, kSpill = 3 };

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

// An extent that lives no longer than the Store that is open: activations that wait for their
// backward pass. `index` is the key's tile; bytes are a multiple of kPageBytes.
struct SpillBytes {
  std::uint32_t unit = 0;
  std::uint32_t index = 0;
  std::uint64_t bytes = 0;
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

// A folder that takes a part of a store.
struct StoreFolder {
  std::string path;  // must exist or its parent must
  std::optional<std::uint64_t> space_bytes_max{};
  double weight = 1.0;  // measured bandwidth, or a share of it: only ratios count
};

// Called now and then while files are written for the first time, from any thread but one at a
// time; bytes of all folders. An Error ends the creation: what was made is removed.
using StoreProgress = std::function<Status(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

struct StoreOptions {
  std::vector<StoreFolder> folders;
  bool direct_io_required = true;  // false ("auto"): fall back to buffered I/O where the filesystem
                                   // refuses O_DIRECT, with a log line
  std::uint32_t slots = 2;         // a tile; 1: durability "none"
  bool undo_slot = false;          // one more, for speculative writes
  // Writes every byte once when the store is made: the first write to blocks that a filesystem has
  // only reserved costs more than later ones, which would make the first steps' timings untrue.
  bool prewrite = true;
  bool copy = false;  // of another store: reclaim_orphans never removes it
  StoreProgress progress{};
  // Of the store. Given by who notes it beforehand, to find what is left of a creation that is cut
  // short (remove_unfinished); otherwise random.
  std::optional<Id128> id{};
};

// How format() lays a store out.
struct StoreLayoutOptions {
  std::uint32_t slots = 2;
  bool undo_slot = false;
  bool prewrite = false;
  bool copy = false;
  StoreProgress progress{};
  // One for each file, or none: equal weights, no limits, paths of the files.
  std::vector<StoreFolder> folders{};
};

struct ExtentPlace {
  std::uint32_t folder = 0;
  std::uint32_t slot = 0;
  std::uint64_t offset = 0;        // of the header; the payload follows it after header_bytes
  std::uint32_t header_bytes = 0;  // a multiple of kPageBytes: holds the sums of all sub-blocks
  std::uint64_t payload_bytes = 0;
};

struct StoreState;

class Store {
 public:
  enum class Access : std::uint8_t { kRead, kWrite };

  // Makes `<folder>/<new id>/data` in every folder, preallocated. Errors: read-only folder, tmpfs,
  // no space (needed and free bytes), not a directory.
  [[nodiscard]] static Result<std::unique_ptr<Store>> create(const StoreOptions& options,
                                                             const StoreContents& contents);
  // Opens `<folder>/<id>` of every folder, in the order in which the store was made. Errors:
  // missing, foreign or newer format, corrupt superblock, locked by another writer, a folder that
  // is lost, stale or another one's.
  [[nodiscard]] static Result<std::unique_ptr<Store>> open(const std::vector<std::string>& folders,
                                                           const std::string& id,
                                                           Access access,
                                                           bool direct_io_required = true);

  // The same over files of any medium, one for each folder: format() makes a store in empty files,
  // load() finds the last commit in files that format() has made.
  [[nodiscard]] static Result<std::unique_ptr<Store>> format(
      std::vector<std::unique_ptr<BlockFile>> files,
      const Id128& id,
      const StoreContents& contents,
      const StoreLayoutOptions& options);
  [[nodiscard]] static Result<std::unique_ptr<Store>> load(
      std::vector<std::unique_ptr<BlockFile>> files, Access access);

  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  [[nodiscard]] const std::string& id() const;    // 32 hex digits
  [[nodiscard]] const std::string& path() const;  // <folder>/<id> of the first folder
  [[nodiscard]] const std::string& data_path(std::uint32_t folder = 0) const;
  [[nodiscard]] std::uint64_t bytes() const;  // of all data files
  [[nodiscard]] const StoreContents& contents() const;
  [[nodiscard]] const std::optional<CommitRecord>& last_commit() const;
  [[nodiscard]] std::uint32_t slots() const;  // a tile, for commits: without the undo slot
  [[nodiscard]] bool undo_slot() const;
  // One slot a tile, and written since the last commit.
  [[nodiscard]] bool dirty() const;
  [[nodiscard]] std::uint32_t folder_count() const;
  [[nodiscard]] std::uint32_t folder_of(std::uint32_t unit, std::uint32_t tile) const;
  [[nodiscard]] std::uint32_t folder_of(const ExtentKey& key) const;
  [[nodiscard]] BlockFile& file(std::uint32_t folder) const;
  [[nodiscard]] bool direct_io() const;  // of all files

  // Room for these spill extents past the end of the data files, and for nothing else there: what a
  // process that was killed has left goes. One slot, in no commit, forgotten with this Store; else
  // they are extents like all others, with headers and sums. Called before engines are made; again
  // only where none is. `space_bytes_max`: the most that each folder's file may take. Errors: no
  // space.
  [[nodiscard]] Status reserve_spill(
      std::vector<SpillBytes> extents,
      std::span<const std::optional<std::uint64_t>> space_bytes_max = {});
  [[nodiscard]] std::uint64_t payload_bytes_max() const;  // of any extent

  [[nodiscard]] bool writable() const;  // opened for writing
  // Tiles may be written: opened for writing, no commit has failed, and with one slot a tile
  // mark_dirty() has been called.
  [[nodiscard]] bool ready_for_writes() const;

  // Where an extent's newest write lies (if there is none: slot 0), and where one of `step` would
  // go: where the newest one is, but with two slots never where the last commit's is (then to the
  // smallest other slot). A speculative one does not go where the newest one is either.
  [[nodiscard]] ExtentPlace read_place(const ExtentKey& key) const;
  [[nodiscard]] ExtentPlace write_place(const ExtentKey& key, std::int64_t step) const;
  // In slot 0, wherever the extent lies now: its lengths, and an address for the race checker.
  [[nodiscard]] ExtentPlace home_place(const ExtentKey& key) const;

  // The step of the newest write of an extent, as its header must say it (-1: never written).
  [[nodiscard]] std::int64_t step_of(const ExtentKey& key) const;
  // Every byte of a write to write_place() was accepted: from now on it is what a read finds.
  void wrote(const ExtentKey& key, const ExtentPlace& place, std::int64_t step);

  // Between speculate() and settle() a write of `step` is speculative: what was the newest one
  // before stays as it is. Writes of other steps go as always. An extent that was written
  // speculatively is not written again before settle(). One caller, with no transfer under way; the
  // store has an undo slot, and what was speculated before is settled. A power cut forgets.
  void speculate(std::int64_t step);
  // keep: what was written speculatively is the newest write. Otherwise it never was: places and
  // steps are again what they were. Nothing to do where nothing was speculated.
  void settle(bool keep);

  // "unit 3, tile 0 (state) of '<path>/data', at offset 8192": for messages. Without a place: that
  // of the newest write.
  [[nodiscard]] std::string describe(const ExtentKey& key) const;
  [[nodiscard]] std::string describe(const ExtentKey& key, const ExtentPlace& place) const;

  // Builds the header of an extent (with the sums of payload) into `header` (place.header_bytes);
  // checks header and payload on the way back.
  void make_header(const ExtentKey& key,
                   const ExtentPlace& place,
                   std::span<const std::byte> payload,
                   std::int64_t step,
                   std::span<std::byte> header) const;
  [[nodiscard]] Status check(const ExtentKey& key,
                             const ExtentPlace& place,
                             std::span<const std::byte> header,
                             std::span<const std::byte> payload) const;

  // The same in parts, so that sub-blocks are summed while other bytes are in flight: begin_header,
  // then set_sum once for each sub-block of kSumBlockBytes (the last may be shorter; any order),
  // then finish_header. And check_header, then check_sum for each sub-block.
  void begin_header(const ExtentKey& key,
                    const ExtentPlace& place,
                    std::int64_t step,
                    std::span<std::byte> header) const;
  static void set_sum(std::span<std::byte> header,
                      std::uint64_t sub_block,
                      std::span<const std::byte> bytes);
  static void finish_header(std::span<std::byte> header);
  [[nodiscard]] Status check_header(const ExtentKey& key,
                                    const ExtentPlace& place,
                                    std::span<const std::byte> header) const;
  [[nodiscard]] Status check_sum(const ExtentKey& key,
                                 const ExtentPlace& place,
                                 std::span<const std::byte> header,
                                 std::uint64_t sub_block,
                                 std::span<const std::byte> bytes) const;

  // Synchronous I/O of one extent's payload (load, export, commit of tiles that live in RAM).
  // Memory may have any alignment (bounced if it must).
  [[nodiscard]] Status read_now(const ExtentKey& key, std::span<std::byte> payload);
  [[nodiscard]] Status write_now(const ExtentKey& key,
                                 std::span<const std::byte> payload,
                                 std::int64_t step);

  // Reads what the last commit names, whatever has been written since (two slots a tile), and
  // checks it. `payload` and `header`, of header_bytes_max() at least, are page-aligned. Any
  // thread, beside everything but commit().
  [[nodiscard]] Status read_committed(const ExtentKey& key,
                                      std::span<std::byte> payload,
                                      std::span<std::byte> header) const;
  [[nodiscard]] std::size_t header_bytes_max() const;

  // With one slot: sets the dirty flag durably before the first write after a commit; no-op when
  // already dirty. With two slots: nothing to do.
  [[nodiscard]] Status mark_dirty();
  // All tiles must have been written, param and state of a tile to the same slot, and what was
  // speculated is settled (asserted). Writes the map, flushes all folders, writes the superblocks
  // with generation + 1, flushes; clears the dirty flag. If it fails, the store takes no more
  // writes: the last commit is as it was, or the one that was being made.
  [[nodiscard]] Status commit(CommitRecord record);

  // Reads every extent of the last commit and checks it. `on_problem` gets each; returns the number
  // of extents checked.
  [[nodiscard]] Result<std::uint64_t> verify(const std::function<void(const Error&)>& on_problem);

 private:
  explicit Store(std::unique_ptr<StoreState> state);
  // Of a header that was found to be right: the sums of all sub-blocks.
  [[nodiscard]] Status check_sums(const ExtentKey& key,
                                  const ExtentPlace& place,
                                  std::span<const std::byte> header,
                                  std::span<const std::byte> payload) const;
  void give_up_spill();

  std::unique_ptr<StoreState> state_;
};

// What `headrace store list`, `inspect` and `store remove` need: never follows a symlink out of the
// folder, never touches what is not a store.
struct StorePart {
  std::string path;  // <folder>/<id>
  std::uint32_t folder_index = 0;
  std::uint64_t bytes = 0;
  std::string problem;
};

struct StoreListing {
  std::string id, path, run_dir;  // run_dir: as recorded at create, may be empty
  std::uint64_t bytes = 0;        // of all parts
  std::int64_t step = -1;         // of the last commit; -1: none
  std::uint32_t slots = 0;        // a tile; 0: not known
  std::uint32_t folder_count = 1;
  bool dirty = false;
  bool locked = false;
  bool copy = false;    // made by copy_store
  std::string problem;  // why it cannot be used; empty: nothing found (extents are not read)
  std::vector<StorePart> parts;  // that were found, by folder index
};

// Stores that have a part in one of the folders; their other parts are looked for where they were
// made.
[[nodiscard]] Result<std::vector<StoreListing>> list_stores(
    const std::vector<std::string>& folders);
// Removes all parts of a store that are in these folders or where they were made; nothing, if one
// is in use. Once it returns, a power cut does not bring them back.
[[nodiscard]] Status remove_store(const std::vector<std::string>& folders, const std::string& id);

// Removes what earlier starts of a run have left in the folders: stores (and the rests of creations
// that were interrupted) that name this run's directory, are not locked, no copies, and not
// `keep_id`. Never another run's. Returns the paths that were removed.
[[nodiscard]] Result<std::vector<std::string>> reclaim_orphans(
    const std::vector<std::string>& folders,
    const std::string& run_dir,
    const std::string& keep_id);

// Removes what a Store::create of this id that was killed has left in the folders from before its
// files said whose they were. Files that say so stay, for reclaim_orphans. True: there was
// something. Errors: it is in use, or cannot be removed.
[[nodiscard]] Result<bool> remove_unfinished(const std::vector<std::string>& folders,
                                             const std::string& id);

// Where a store lies: all its folders, in order.
struct StoreLocation {
  std::vector<std::string> folders;
  std::string id;
};

// From the path `<folder>/<id>` of any part: the others are where they were when it was made.
[[nodiscard]] Result<StoreLocation> locate_store(const std::string& path);

// Copies the last commit into a new store in the target folders, verifying every extent, and
// returns its id. Errors: no commit, a damaged extent, no space; nothing is left behind then.
[[nodiscard]] Result<std::string> copy_store(const StoreLocation& source,
                                             const std::vector<StoreFolder>& targets,
                                             const StoreProgress& progress = {});

}  // namespace headrace::tiers::nvme
