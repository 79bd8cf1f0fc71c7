// Reading safetensors (safetensors.hpp).
#include "model/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "core/assert.hpp"
#include "core/files.hpp"
#include "core/json.hpp"

namespace headrace::model {

namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::size_t kRankMax = 64;
constexpr std::size_t kHeaderDepthMax = 8;

struct DtypeSize {
  std::string_view name;
  std::uint64_t bits;
};

constexpr std::array kDtypeSizes{
    DtypeSize{"BOOL", 8},        DtypeSize{"U8", 8},          DtypeSize{"I8", 8},
    DtypeSize{"F4", 4},          DtypeSize{"F6_E2M3", 6},     DtypeSize{"F6_E3M2", 6},
    DtypeSize{"F8_E4M3", 8},     DtypeSize{"F8_E5M2", 8},     DtypeSize{"F8_E8M0", 8},
    DtypeSize{"F8_E4M3FNUZ", 8}, DtypeSize{"F8_E5M2FNUZ", 8}, DtypeSize{"I16", 16},
    DtypeSize{"U16", 16},        DtypeSize{"F16", 16},        DtypeSize{"BF16", 16},
    DtypeSize{"I32", 32},        DtypeSize{"U32", 32},        DtypeSize{"F32", 32},
    DtypeSize{"C64", 64},        DtypeSize{"F64", 64},        DtypeSize{"I64", 64},
    DtypeSize{"U64", 64},
};

std::optional<std::uint64_t> dtype_bits(std::string_view name) {
  for (const DtypeSize& entry : kDtypeSizes) {
    if (entry.name == name) {
      return entry.bits;
    }
  }
  return std::nullopt;
}

Error corrupt(const std::string& path, const std::string& text) {
  return corrupt_error(fmt::format("'{}': {}", path, text))
      .with_hint("the file is damaged or was not written whole: copy or download it again");
}

Error corrupt_tensor(const std::string& path, const std::string& name, const std::string& text) {
  return corrupt(path, fmt::format("tensor '{}': {}", name, text));
}

// `name`'s dtype, shape and place; elements and bytes checked against each other, not yet against
// the file.
Result<SafetensorsTensor> parse_tensor(const std::string& path,
                                       const std::string& name,
                                       const Json& value) {
  const auto fail = [&](const std::string& text) { return corrupt_tensor(path, name, text); };
  const Json* dtype = value.find("dtype");
  const Json* shape = value.find("shape");
  const Json* offsets = value.find("data_offsets");
  if (dtype == nullptr || dtype->as_string() == nullptr || shape == nullptr ||
      shape->as_array() == nullptr || offsets == nullptr || offsets->as_array() == nullptr ||
      offsets->as_array()->size() != 2) {
    return fail("needs a dtype, a shape and two data_offsets");
  }
  SafetensorsTensor tensor;
  tensor.name = name;
  tensor.dtype = *dtype->as_string();
  const std::optional<std::uint64_t> bits = dtype_bits(tensor.dtype);
  if (!bits) {
    return fail(fmt::format("dtype '{}' is not known", tensor.dtype));
  }
  if (shape->as_array()->size() > kRankMax) {
    return fail(fmt::format("{} dimensions are too many", shape->as_array()->size()));
  }
  tensor.elements = 1;
  for (const Json& entry : *shape->as_array()) {
    const std::optional<std::int64_t> extent = entry.as_int();
    if (!extent || *extent < 0) {
      return fail("a dimension is not a natural number");
    }
    if (__builtin_mul_overflow(tensor.elements, *extent, &tensor.elements)) {
      return fail("the number of elements overflows");
    }
    tensor.shape.push_back(*extent);
  }
  std::uint64_t total_bits = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(tensor.elements), *bits, &total_bits)) {
    return fail("the number of bytes overflows");
  }
  const std::optional<std::uint64_t> begin = (*offsets->as_array())[0].as_uint();
  const std::optional<std::uint64_t> end = (*offsets->as_array())[1].as_uint();
  if (!begin || !end || *end < *begin) {
    return fail("data_offsets are not an ascending pair of natural numbers");
  }
  if (total_bits % 8 != 0 || *end - *begin != total_bits / 8) {
    return fail(fmt::format("its {} elements of {} do not fill the {} bytes of its data_offsets",
                            tensor.elements,
                            tensor.dtype,
                            *end - *begin));
  }
  tensor.offset_bytes = *begin;
  tensor.bytes = *end - *begin;
  return tensor;
}

Result<std::map<std::string, std::string>> parse_metadata(const std::string& path,
                                                          const Json& value) {
  const Json::Object* members = value.as_object();
  if (members == nullptr) {
    return corrupt(path, "__metadata__ is not an object");
  }
  std::map<std::string, std::string> metadata;
  for (const Json::Member& member : *members) {
    const std::string* text = member.value.as_string();
    if (text == nullptr) {
      return corrupt(path, fmt::format("__metadata__: '{}' is not a string", member.key));
    }
    metadata.emplace(member.key, *text);
  }
  return metadata;
}

// Tensors sorted by offset begin where the last ended, from 0 to the end of the data.
Status check_tiling(const std::string& path,
                    std::vector<SafetensorsTensor>& tensors,
                    std::uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.offset_bytes, a.bytes, a.name) < std::tie(b.offset_bytes, b.bytes, b.name);
  });
  std::uint64_t at = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.offset_bytes != at) {
      const char* what =
          tensor.offset_bytes < at ? "overlaps the tensor before it" : "leaves a gap before it";
      return corrupt_tensor(path, tensor.name, what);
    }
    at += tensor.bytes;  // cannot overflow: ascending, and each end was a 64-bit number
    if (at > data_bytes) {
      return corrupt_tensor(
          path, tensor.name, fmt::format("ends at byte {} of data that has {}", at, data_bytes));
    }
  }
  if (at != data_bytes) {
    return corrupt(path, fmt::format("{} bytes after the last tensor", data_bytes - at));
  }
  return {};
}

// The header's text, its length checked against the limit and the file before anything is
// allocated.
Result<std::string> read_header(const std::string& path, int fd, std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    return corrupt(path, fmt::format("{} bytes are no safetensors file", file_bytes));
  }
  std::uint64_t header_bytes = 0;
  HEADRACE_TRY(read_exactly(fd, std::as_writable_bytes(std::span(&header_bytes, 1)), 0));
  if (header_bytes > kSafetensorsHeaderBytesMax) {
    return corrupt(path,
                   fmt::format("its header claims {} bytes; the format allows {}",
                               header_bytes,
                               kSafetensorsHeaderBytesMax));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    return corrupt(path,
                   fmt::format("its header claims {} bytes, the file has {} after the length",
                               header_bytes,
                               file_bytes - kLengthBytes));
  }
  std::string header(header_bytes, '\0');
  HEADRACE_TRY(read_exactly(fd, std::as_writable_bytes(std::span(header)), kLengthBytes));
  if (!header.starts_with('{')) {
    return corrupt(path, "its header does not begin with '{'");
  }
  return header;
}

// A regular file's size. A folder or a pipe is an operating error.
Result<std::uint64_t> regular_file_bytes(const std::string& path, int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) {
    return errno_error(fmt::format("'{}': cannot stat", path), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return operating_error(fmt::format("'{}' is not a regular file", path));
  }
  return static_cast<std::uint64_t>(status.st_size);
}

// out holds `count` 16-bit values in its second half; widens them in ascending order. Element i is
// written below where element i + 1 is read from, so the place suffices.
template <class Widen>
void widen_in_place(std::span<float> out, Widen widen) {
  const auto* bytes = reinterpret_cast<const std::byte*>(out.data()) + out.size() * 2;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, bytes + 2 * i, sizeof half);
    out[i] = widen(half);
  }
}

}  // namespace

std::optional<Dtype> SafetensorsTensor::float_dtype() const {
  if (dtype == "F32") {
    return Dtype::kF32;
  }
  if (dtype == "BF16") {
    return Dtype::kBf16;
  }
  if (dtype == "F16") {
    return Dtype::kF16;
  }
  return std::nullopt;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  HEADRACE_ASSIGN(file.file_, open_regular_file(path));
  HEADRACE_ASSIGN(const std::uint64_t file_bytes, regular_file_bytes(path, file.file_.get()));
  HEADRACE_ASSIGN(const std::string text, read_header(path, file.file_.get(), file_bytes));
  const std::uint64_t data_begin = kLengthBytes + text.size();
  Result<Json> header =
      parse_json(text, {.bytes_max = kSafetensorsHeaderBytesMax, .depth_max = kHeaderDepthMax});
  if (!header) {
    Error error = corrupt(path, "its header is not valid JSON");
    error.why = header.error().why.empty() ? header.error().what : header.error().why;
    return error;
  }
  for (const Json::Member& member : *header->as_object()) {
    if (member.key == "__metadata__") {
      HEADRACE_ASSIGN(file.metadata_, parse_metadata(path, member.value));
      continue;
    }
    HEADRACE_ASSIGN(SafetensorsTensor tensor, parse_tensor(path, member.key, member.value));
    file.tensors_.push_back(std::move(tensor));
  }
  HEADRACE_TRY(check_tiling(path, file.tensors_, file_bytes - data_begin));
  for (std::size_t i = 0; i < file.tensors_.size(); ++i) {
    file.tensors_[i].offset_bytes += data_begin;
    file.index_.emplace(file.tensors_[i].name, i);
  }
  return file;
}

const SafetensorsTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

Status SafetensorsFile::read(const SafetensorsTensor& tensor,
                             std::int64_t begin,
                             std::span<float> out) const {
  const std::optional<Dtype> dtype = tensor.float_dtype();
  HEADRACE_ASSERT(dtype.has_value(), "only floats of 16 and 32 bits are read");
  HEADRACE_ASSERT(begin >= 0 && static_cast<std::int64_t>(out.size()) <= tensor.elements - begin,
                  "the range is not inside the tensor");
  const std::size_t element_bytes = dtype_bytes(*dtype);
  const std::span<std::byte> bytes = std::as_writable_bytes(out);
  const std::span<std::byte> into = bytes.last(out.size() * element_bytes);
  Status status = read_exactly(
      file_.get(), into, tensor.offset_bytes + static_cast<std::uint64_t>(begin) * element_bytes);
  if (!status) {
    Error error = std::move(status).error();
    error.what = fmt::format("'{}': tensor '{}': {}", path_, tensor.name, error.what);
    return error;
  }
  if (*dtype == Dtype::kBf16) {
    widen_in_place(out, float_from_bf16);
  } else if (*dtype == Dtype::kF16) {
    widen_in_place(out, float_from_f16);
  }
  return {};
}

}  // namespace headrace::model
