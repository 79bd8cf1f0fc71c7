// expand_glob of core/files.hpp: fnmatch(3) part by part, with ** for any number of folders, which
// glob(3) does not know. Hidden files and folders match only parts that begin with a dot.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/files.hpp"

namespace headrace {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPathsHint =
    "paths in a file are relative to it, those in --set to the working directory";

bool has_wildcard(std::string_view text) {
  return text.find_first_of("*?[") != text.npos;
}

std::vector<std::string> split_parts(std::string_view pattern) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= pattern.size()) {
    const std::size_t end = std::min(pattern.find('/', begin), pattern.size());
    if (end > begin) {
      parts.emplace_back(pattern.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return parts;
}

struct Walk {
  const std::vector<std::string>* parts = nullptr;
  std::vector<std::string> found;
  std::error_code code;  // the first failure to list a folder other than "not allowed"
};

// Entries of a folder; a folder that may not be read has none, as for a shell.
std::vector<fs::path> entries_of(Walk& walk, const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code code;
  const auto options = fs::directory_options::skip_permission_denied;
  fs::directory_iterator iterator(folder.empty() ? fs::path(".") : folder, options, code);
  while (!code && iterator != fs::directory_iterator()) {
    entries.push_back(folder / iterator->path().filename());
    iterator.increment(code);
  }
  if (code && !walk.code) {
    walk.code = code;
  }
  return entries;
}

bool is_folder(const fs::path& path) {
  std::error_code code;
  return fs::is_directory(path, code);
}

// depth-first; links to folders are not followed by **, so a cycle of links ends.
void match_from(Walk& walk, const fs::path& folder, std::size_t index) {
  const std::string& part = (*walk.parts)[index];
  const bool last = index + 1 == walk.parts->size();
  if (part == "**") {
    if (!last) {
      match_from(walk, folder, index + 1);
    }
    for (const fs::path& entry : entries_of(walk, folder)) {
      const bool hidden = entry.filename().string().starts_with('.');
      std::error_code code;
      if (hidden) {
        continue;
      }
      if (is_folder(entry)) {
        if (!fs::is_symlink(entry, code)) {
          match_from(walk, entry, index);
        }
      } else if (last && fs::is_regular_file(entry, code)) {
        walk.found.push_back(entry.string());
      }
    }
    return;
  }
  if (!has_wildcard(part)) {
    const fs::path entry = folder / part;
    std::error_code code;
    if (last ? fs::is_regular_file(entry, code) : is_folder(entry)) {
      if (last) {
        walk.found.push_back(entry.string());
      } else {
        match_from(walk, entry, index + 1);
      }
    }
    return;
  }
  for (const fs::path& entry : entries_of(walk, folder)) {
    if (::fnmatch(part.c_str(), entry.filename().c_str(), FNM_PERIOD) != 0) {
      continue;
    }
    std::error_code code;
    if (last && fs::is_regular_file(entry, code)) {
      walk.found.push_back(entry.string());
    } else if (!last && is_folder(entry)) {
      match_from(walk, entry, index + 1);
    }
  }
}

}  // namespace

Result<std::vector<std::string>> expand_glob(const std::string& pattern) {
  if (!has_wildcard(pattern)) {
    std::error_code code;
    if (fs::is_regular_file(pattern, code)) {
      return std::vector<std::string>{pattern};
    }
    if (fs::exists(pattern, code) && !is_folder(pattern)) {
      return operating_error(fmt::format("cannot read '{}'", pattern))
          .with_why("it is a pipe or a device, not a regular file")
          .with_hint("copy what it gives into a file, and name that");
    }
    return operating_error(fmt::format("no such file: '{}'", pattern))
        .with_why(is_folder(pattern) ? "it is a folder" : "")
        .with_hint(
            is_folder(pattern)
                ? fmt::format("name its files with a pattern, as in \"{}/**/*.txt\"", pattern)
                : std::string(kPathsHint));
  }
  const std::vector<std::string> parts = split_parts(pattern);
  Walk walk;
  walk.parts = &parts;
  match_from(walk, pattern.starts_with('/') ? fs::path("/") : fs::path(), 0);
  if (walk.code) {
    return errno_error(fmt::format("cannot expand '{}'", pattern), walk.code.value());
  }
  if (walk.found.empty()) {
    return operating_error(fmt::format("no file matches '{}'", pattern))
        .with_hint(std::string(kPathsHint));
  }
  std::sort(walk.found.begin(), walk.found.end());
  walk.found.erase(std::unique(walk.found.begin(), walk.found.end()), walk.found.end());
  return std::move(walk.found);
}

}  // namespace headrace
