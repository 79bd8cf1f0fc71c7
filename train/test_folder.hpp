// A folder of its own for each test, removed at its end; and files in it. Below $HEADRACE_TEST_DIR,
// else the working directory (the build folder: a disk, where /tmp may be in memory).
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "core/files.hpp"

namespace headrace::train {

class TestFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* chosen = ::getenv("HEADRACE_TEST_DIR");
    std::string base = chosen != nullptr ? chosen : std::filesystem::current_path().string();
    if (filesystem_of(base).value().kind == FilesystemKind::kTmpfs) {
      base = "/var/tmp";
    }
    std::string pattern = base + "/train-test-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }

  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // The file's path, for who wants it. NOLINTNEXTLINE(modernize-use-nodiscard)
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

  template <class T>
  [[nodiscard]] std::string write_values(const std::string& name,
                                         const std::vector<T>& values) const {
    std::string bytes(values.size() * sizeof(T), '\0');
    if (!bytes.empty()) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    return write(name, bytes);
  }

  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::string folder_;
};

// An llm.c token file: header of 256 int32, then the tokens.
template <class T>
std::string llmc_bytes(const std::vector<T>& tokens, std::int32_t count) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = sizeof(T) == 2 ? 20240520 : 20240801;
  header[1] = sizeof(T) == 2 ? 1 : 7;
  header[2] = count;
  std::string bytes(1024 + tokens.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), header.data(), 1024);
  std::memcpy(bytes.data() + 1024, tokens.data(), tokens.size() * sizeof(T));
  return bytes;
}

}  // namespace headrace::train
