// Writing safetensors (safetensors.hpp): header first, since sizes are known, then tensor by tensor
// through the caller's buffer.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <tuple>

#include "core/assert.hpp"
#include "core/files.hpp"
#include "core/json.hpp"
#include "model/safetensors.hpp"

namespace headrace::model {

namespace {

constexpr std::size_t kHeaderPadBytes = 8;

std::string_view dtype_text(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "F32";
    case Dtype::kBf16:
      return "BF16";
    case Dtype::kF16:
      return "F16";
  }
  return "";
}

std::int64_t count_elements(const SafetensorsEntry& entry) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : entry.shape) {
    HEADRACE_ASSERT(extent >= 0, "a dimension is negative");
    elements *= extent;
  }
  return elements;
}

std::vector<std::size_t> file_order(const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const std::size_t a_bytes = dtype_bytes(entries[a].dtype);
    const std::size_t b_bytes = dtype_bytes(entries[b].dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : entries[a].name < entries[b].name;
  });
  return order;
}

// The 8 bytes of length and the padded JSON.
std::string header_text(const SafetensorsWrite& request, const std::vector<std::size_t>& order) {
  Json header = Json::object();
  if (!request.metadata.empty()) {
    Json metadata = Json::object();
    for (const auto& [key, value] : request.metadata) {
      metadata.set(key, value);
    }
    header.add("__metadata__", std::move(metadata));
  }
  std::uint64_t at = 0;
  for (const std::size_t index : order) {
    const SafetensorsEntry& entry = request.entries[index];
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(count_elements(entry)) * dtype_bytes(entry.dtype);
    Json shape = Json::array();
    for (const std::int64_t extent : entry.shape) {
      shape.push_back(extent);
    }
    Json tensor = Json::object();
    tensor.add("dtype", dtype_text(entry.dtype));
    tensor.add("shape", std::move(shape));
    tensor.add("data_offsets", Json::Array{at, at + bytes});
    header.add(entry.name, std::move(tensor));
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderPadBytes - 1) / kHeaderPadBytes * kHeaderPadBytes, ' ');
  const std::uint64_t length = text.size();
  std::string prefix(sizeof length, '\0');
  std::memcpy(prefix.data(), &length, sizeof length);
  return prefix + text;
}

// Rounds in ascending order; element i lands at or below where it was read.
std::string_view narrow_in_place(std::span<float> values, Dtype dtype) {
  auto* bytes = reinterpret_cast<char*>(values.data());
  if (dtype == Dtype::kF32) {
    return {bytes, values.size_bytes()};
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    const std::uint16_t half =
        dtype == Dtype::kBf16 ? bf16_from_float(value) : f16_from_float(value);
    std::memcpy(bytes + 2 * i, &half, sizeof half);
  }
  return {bytes, values.size() * 2};
}

Status write_tensor(int fd, const SafetensorsWrite& request, std::size_t index) {
  const SafetensorsEntry& entry = request.entries[index];
  const std::int64_t elements = count_elements(entry);
  const auto step = static_cast<std::int64_t>(request.buffer.size());
  for (std::int64_t begin = 0; begin < elements; begin += step) {
    const auto count = static_cast<std::size_t>(std::min(step, elements - begin));
    const std::span<float> part = request.buffer.first(count);
    HEADRACE_TRY(request.source(index, begin, part));
    HEADRACE_TRY(write_all(fd, narrow_in_place(part, entry.dtype)));
  }
  return {};
}

Status write_partial(const SafetensorsWrite& request, const std::string& partial) {
  HEADRACE_ASSIGN(const UniqueFd file, open_file(partial, O_WRONLY | O_CREAT | O_TRUNC));
  const std::vector<std::size_t> order = file_order(request.entries);
  HEADRACE_TRY(write_all(file.get(), header_text(request, order)));
  for (const std::size_t index : order) {
    HEADRACE_TRY(write_tensor(file.get(), request, index));
  }
  if (::fsync(file.get()) != 0) {
    return errno_error(fmt::format("'{}': cannot flush", partial), errno);
  }
  return {};
}

// The new name is on the disk once the folder is.
Status rename_and_flush(const std::string& partial, const std::string& path) {
  if (std::rename(partial.c_str(), path.c_str()) != 0) {
    return errno_error(fmt::format("cannot rename '{}' to '{}'", partial, path), errno);
  }
  HEADRACE_ASSIGN(const UniqueFd folder, open_file(parent_path(path), O_RDONLY | O_DIRECTORY));
  if (::fsync(folder.get()) != 0) {
    return errno_error(fmt::format("'{}': cannot flush the folder", parent_path(path)), errno);
  }
  return {};
}

}  // namespace

Status write_safetensors(const SafetensorsWrite& request) {
  HEADRACE_ASSERT(!request.buffer.empty(), "the writer needs a buffer");
  const std::string partial = request.path + ".partial";
  Status status = write_partial(request, partial);
  if (status) {
    status = rename_and_flush(partial, request.path);
  }
  if (!status) {
    Error error = std::move(status).error();
    error.what = fmt::format("writing '{}': {}", request.path, error.what);
    // The error at hand says more than a failure to remove what it left.
    static_cast<void>(::unlink(partial.c_str()));
    return error;
  }
  return {};
}

}  // namespace headrace::model
