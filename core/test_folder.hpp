// TestFolder: an empty folder for one test, removed with it. For tests of every folder of the tree.
//
// Invariant: below $HEADRACE_TEST_DIR, else $TMPDIR, else the system's; names are unique.
// Failure: a test that cannot have its folder aborts.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "core/assert.hpp"
#include "core/hash.hpp"

namespace headrace {

class TestFolder {
 public:
  TestFolder() {
    const char* chosen = std::getenv("HEADRACE_TEST_DIR");
    const std::filesystem::path base =
        chosen != nullptr ? std::filesystem::path(chosen) : std::filesystem::temp_directory_path();
    root_ = base / ("headrace-test-" + random_id().value().hex());
    std::error_code code;
    std::filesystem::create_directories(root_, code);
    HEADRACE_ASSERT(!code, "cannot make a folder for a test");
  }

  ~TestFolder() {
    std::error_code code;
    std::filesystem::remove_all(root_, code);
  }

  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  // The absolute path of a name below the folder; of the folder, with a slash, for "".
  [[nodiscard]] std::string path(std::string_view name) const { return (root_ / name).string(); }

 private:
  std::filesystem::path root_;
};

}  // namespace headrace
