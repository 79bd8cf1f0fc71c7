// What the tests of tiers/nvme share: a folder on a real filesystem, small stores, memory that
// lanes accept, contents that tell where they belong.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tiers/nvme/page_buffer.hpp"
#include "tiers/nvme/store.hpp"
#include "tiers/test_support.hpp"

namespace headrace::tiers::nvme::testing {

using tiers::test_seed;

// A new folder in the working directory (the build folder: a disk, where /tmp may be tmpfs), gone
// with the object.
class TestFolder {
 public:
  TestFolder() {
    std::string name = std::filesystem::current_path() / "nvme_test.XXXXXX";
    if (filesystem_of(".").value().kind == FilesystemKind::kTmpfs) {
      name = "/var/tmp/nvme_test.XXXXXX";
    }
    const char* made = ::mkdtemp(name.data());
    EXPECT_NE(made, nullptr) << errno_error("mkdtemp", errno).why;
    path_ = name;
  }

  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  ~TestFolder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] const std::string& path() const { return path_; }

  // Nothing in it.
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

// In a process with limits of its own. What it returns is the exit code.
inline int in_a_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

// For a child: root has no limits of processes and locked memory.
inline bool become_an_ordinary_user() {
  constexpr uid_t kNobody = 65534;
  return ::getuid() != 0 || ::setuid(kNobody) == 0;
}

inline bool may_start_no_threads() {
  const rlimit limit{.rlim_cur = 1, .rlim_max = 1};
  return become_an_ordinary_user() && ::setrlimit(RLIMIT_NPROC, &limit) == 0;
}

#define HEADRACE_EXPECT_OK(expression)                                           \
  do {                                                                           \
    const auto& headrace_result = (expression);                                  \
    EXPECT_TRUE(headrace_result.has_value())                                     \
        << (headrace_result ? "" : format_error(headrace_result.error(), true)); \
  } while (false)

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

inline constexpr std::uint64_t kKib = 1024;

// Two units; tiles of several sizes, one of them frozen.
inline StoreContents small_contents() {
  StoreContents contents;
  contents.tiles = {
      {.unit = 0, .tile = 0, .param_bytes = 3 * kPageBytes, .state_bytes = 6 * kPageBytes},
      {.unit = 0, .tile = 1, .param_bytes = 256 * kKib, .state_bytes = 512 * kKib},
      {.unit = 2, .tile = 0, .param_bytes = kPageBytes, .state_bytes = 0},
      {.unit = 2, .tile = 1, .param_bytes = 132 * kKib, .state_bytes = 1028 * kKib},
  };
  contents.tensor_table = R"({"units":[]})";
  contents.layout_tag = "fp32/fp32";
  contents.run_dir = "/runs/demo";
  return contents;
}

inline StoreOptions auto_options(const std::string& folder, std::uint32_t slots = 1) {
  StoreOptions options;
  options.folders = {{.path = folder}};
  options.slots = slots;
  options.prewrite = false;
  options.direct_io_required = false;
  return options;
}

inline std::unique_ptr<Store> make_store(const std::string& folder,
                                         const StoreContents& contents = small_contents(),
                                         std::uint32_t slots = 1) {
  Result<std::unique_ptr<Store>> store = Store::create(auto_options(folder, slots), contents);
  if (!store) {
    ADD_FAILURE() << format_error(store.error(), true);
    return nullptr;
  }
  return std::move(*store);
}

inline Result<std::unique_ptr<Store>> open_store(const std::string& folder,
                                                 const std::string& id,
                                                 Store::Access access = Store::Access::kRead) {
  return Store::open({folder}, id, access, false);
}

inline std::vector<ExtentKey> all_extents(const Store& store) {
  std::vector<ExtentKey> keys;
  for (const TileBytes& tile : store.contents().tiles) {
    keys.push_back({.unit = tile.unit, .tile = tile.tile, .kind = ExtentKind::kParam});
    if (tile.state_bytes > 0) {
      keys.push_back({.unit = tile.unit, .tile = tile.tile, .kind = ExtentKind::kState});
    }
  }
  return keys;
}

// Bytes that differ for every extent, step and position.
inline void fill(std::span<std::byte> memory, const ExtentKey& key, std::int64_t step) {
  std::seed_seq seeds{
      key.unit, key.tile, static_cast<std::uint32_t>(key.kind), static_cast<std::uint32_t>(step)};
  std::mt19937_64 random(seeds);
  for (std::size_t at = 0; at < memory.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
}

inline PageBuffer pages(std::size_t bytes) {
  Result<PageBuffer> buffer = PageBuffer::create(bytes);
  EXPECT_TRUE(buffer.has_value());
  return std::move(*buffer);
}

inline std::vector<std::byte> pattern(const Store& store, const ExtentKey& key, std::int64_t step) {
  std::vector<std::byte> bytes(store.read_place(key).payload_bytes);
  fill(bytes, key, step);
  return bytes;
}

inline void write_all_extents(Store& store, std::int64_t step) {
  for (const ExtentKey& key : all_extents(store)) {
    HEADRACE_EXPECT_OK(store.write_now(key, pattern(store, key, step), step));
  }
}

inline void expect_holds(Store& store, const ExtentKey& key, std::int64_t step) {
  std::vector<std::byte> bytes(store.read_place(key).payload_bytes);
  HEADRACE_EXPECT_OK(store.read_now(key, bytes));
  EXPECT_TRUE(bytes == pattern(store, key, step)) << store.describe(key);
}

// Flips one bit of a file on the disk.
inline void flip_bit(const std::string& path, std::uint64_t offset, int bit = 3) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.is_open());
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ (1 << bit)));
}

// A limit of the process on the size of files: fallocate fails for real, after the checks.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uint64_t bytes) {
    previous_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    rlimit limit = previous_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }

  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    EXPECT_EQ(std::signal(SIGXFSZ, previous_handler_), SIG_IGN);
  }

 private:
  rlimit previous_{};
  void (*previous_handler_)(int) = nullptr;
};

inline int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

}  // namespace headrace::tiers::nvme::testing
