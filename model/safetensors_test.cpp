// safetensors: every way in which a file can be broken, and round trips.
#include "model/safetensors.hpp"

#include <cmath>
#include <fstream>
#include <limits>

#include "core/files.hpp"
#include "model/test_support.hpp"

namespace headrace::model {
namespace {

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + rest;
}

std::string file_text(const std::string& header, std::size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\x01'));
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

struct Broken {
  const char* name;
  std::string text;
  const char* says;
};

std::ostream& operator<<(std::ostream& stream, const Broken& broken) {
  return stream << broken.name;
}

std::vector<Broken> broken_files() {
  const auto tensor = [](const char* dtype, const char* shape, const char* offsets) {
    return std::string(R"({"a":{"dtype":")") + dtype + R"(","shape":)" + shape +
           R"(,"data_offsets":)" + offsets + "}}";
  };
  return {
      {"Empty", "", "0 bytes"},
      {"ShorterThanItsLength", "1234567", "7 bytes"},
      {"HeaderOf2To60Bytes",
       with_length(std::uint64_t{1} << 60, "{}"),
       "claims 1152921504606846976"},
      {"HeaderAboveTheLimit", with_length(100'000'001, "{}"), "100000001"},
      {"HeaderOf2To64Bytes", with_length(~std::uint64_t{0}, "{}"), "claims 18446744073709551615"},
      {"TruncatedHeader", with_length(100, R"({"a":)"), "claims 100 bytes"},
      {"NoBrace", file_text(" {}", 0), "'{'"},
      {"NoJson", file_text("{nonsense", 0), "not valid JSON"},
      {"DuplicateKey",
       file_text(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                 8),
       "twice"},
      {"DeepNesting",
       file_text("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}", 0),
       "not valid JSON"},
      {"NoDtype", file_text(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), "tensor 'a'"},
      {"NoShape", file_text(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "tensor 'a'"},
      {"NoOffsets", file_text(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "tensor 'a'"},
      {"TensorIsANumber", file_text(R"({"a":4})", 0), "tensor 'a'"},
      {"UnknownDtype", file_text(tensor("F13", "[1]", "[0,4]"), 4), "'F13'"},
      {"NegativeDimension", file_text(tensor("F32", "[-1]", "[0,4]"), 4), "natural"},
      {"FractionalDimension", file_text(tensor("F32", "[1.5]", "[0,4]"), 4), "natural"},
      {"ElementsOverflow",
       file_text(tensor("F32", "[4294967296,4294967296]", "[0,4]"), 4),
       "overflows"},
      {"BytesOverflow", file_text(tensor("F32", "[4611686018427387904]", "[0,4]"), 4), "overflows"},
      {"OffsetsReversed", file_text(tensor("F32", "[1]", "[4,0]"), 4), "ascending"},
      {"OffsetsNegative", file_text(tensor("F32", "[1]", "[-4,0]"), 4), "natural"},
      {"OffsetsDoNotFitShape", file_text(tensor("F32", "[2]", "[0,4]"), 4), "do not fill"},
      {"HalfAByte", file_text(tensor("F4", "[3]", "[0,1]"), 1), "do not fill"},
      {"GapAtTheStart", file_text(tensor("F32", "[1]", "[4,8]"), 8), "gap"},
      {"DataMissing", file_text(tensor("F32", "[2]", "[0,8]"), 4), "data that has 4"},
      {"DataLeftOver", file_text(tensor("F32", "[1]", "[0,4]"), 6), "2 bytes after"},
      {"DataWithoutTensors", file_text("{}", 1), "1 bytes after"},
      {"EndAt2To64",
       file_text(tensor("U8", "[0]", "[18446744073709551615,18446744073709551615]"), 0),
       "gap"},
      {"Overlap",
       file_text(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                 R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                 8),
       "tensor 'b': overlaps"},
      {"GapBetween",
       file_text(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                 12),
       "tensor 'b': leaves a gap"},
      {"MetadataIsAList", file_text(R"({"__metadata__":[]})", 0), "__metadata__"},
      {"MetadataOfNumbers", file_text(R"({"__metadata__":{"a":1}})", 0), "__metadata__: 'a'"},
  };
}

class SafetensorsBroken : public testing::TestWithParam<Broken> {};

TEST_P(SafetensorsBroken, IsRefusedAsCorruptAndNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  write_text(path, GetParam().text);
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ExitCode::kCorrupt);
  EXPECT_NE(text_of(file.error()).find(GetParam().says), std::string::npos)
      << text_of(file.error());
  EXPECT_NE(file.error().what.find("x.safetensors"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Safetensors,
                         SafetensorsBroken,
                         testing::ValuesIn(broken_files()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Safetensors, WhatTheSystemRefusesIsAnOperatingError) {
  const TemporaryFolder folder;
  const Result<SafetensorsFile> missing = SafetensorsFile::open(folder.path() + "/none");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ExitCode::kOperating);
  const Result<SafetensorsFile> directory = SafetensorsFile::open(folder.path());
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ExitCode::kOperating);
}

TEST(Safetensors, EmptyTensorsScalarsAndUnalignedHeadersAreLegal) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  const float value = 2.5F;
  std::string data(sizeof value, '\0');
  std::memcpy(data.data(), &value, sizeof value);
  const std::string header = R"({"none":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                             R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("__metadata__":{"format":"pt"}}  )";
  write_text(path, with_length(header.size(), header + data));
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << text_of(file.error());
  EXPECT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->find("none")->elements, 0);
  const SafetensorsTensor* scalar = file->find("scalar");
  ASSERT_NE(scalar, nullptr);
  float read = 0;
  ASSERT_TRUE(file->read(*scalar, 0, std::span(&read, 1)));
  EXPECT_EQ(read, value);
  EXPECT_EQ(file->find("other"), nullptr);
}

TEST(Safetensors, AFileThatShrankIsCorruptAndTheTensorIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  write_text(path, file_text(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 16));
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::vector<float> values(4);
  const Status status = file->read(*file->find("a"), 0, values);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ExitCode::kCorrupt);
  EXPECT_NE(status.error().what.find("tensor 'a'"), std::string::npos);
}

// What a round trip through a dtype must give.
float through(float value, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return value;
    case Dtype::kBf16:
      return float_from_bf16(bf16_from_float(value));
    case Dtype::kF16:
      return float_from_f16(f16_from_float(value));
  }
  return 0;
}

TEST(Safetensors, RoundTripOfEveryDtypeThroughAnyBufferAndRange) {
  std::mt19937_64 random(test_seed());
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  SafetensorsWrite write;
  write.path = path;
  write.entries = {{"z", Dtype::kBf16, {3, 5}},
                   {"half", Dtype::kF16, {129}},
                   {"b", Dtype::kF32, {7, 11, 2}},
                   {"a", Dtype::kF32, {}},
                   {"none", Dtype::kF32, {0, 4}},
                   {"quoted \"name\"\n", Dtype::kBf16, {1}}};
  std::vector<std::vector<float>> values;
  for (const std::int64_t count : {15, 129, 154, 1, 0, 1}) {
    values.push_back(random_floats(random, count));
  }
  values[2][0] = -0.0F;
  values[2][1] = std::numeric_limits<float>::infinity();
  values[2][2] = std::numeric_limits<float>::denorm_min();
  write.source = [&](std::size_t index, std::int64_t begin, std::span<float> out) -> Status {
    std::copy_n(values[index].begin() + begin, out.size(), out.begin());
    return {};
  };
  std::string first_bytes;
  for (const std::size_t buffer_elements : {1U, 3U, 64U, 1000U}) {
    std::vector<float> buffer(buffer_elements);
    write.buffer = buffer;
    ASSERT_TRUE(write_safetensors(write));
    const Result<std::string> bytes = read_file(path, 1 << 20);
    ASSERT_TRUE(bytes);
    first_bytes = first_bytes.empty() ? *bytes : first_bytes;
    EXPECT_EQ(*bytes, first_bytes);
  }
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << text_of(file.error());
  std::vector<std::string> names;
  for (const SafetensorsTensor& tensor : file->tensors()) {
    names.push_back(tensor.name);
    EXPECT_EQ(tensor.offset_bytes % 2, 0U);
  }
  EXPECT_EQ(file->tensors().front().offset_bytes % 8, 0U);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "none", "half", "quoted \"name\"\n", "z"}));
  for (std::size_t i = 0; i < write.entries.size(); ++i) {
    const SafetensorsTensor* tensor = file->find(write.entries[i].name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->shape, write.entries[i].shape);
    std::vector<float> expected = values[i];
    for (float& value : expected) {
      value = through(value, write.entries[i].dtype);
    }
    for (std::size_t begin = 0; begin <= expected.size(); begin += 1 + begin / 2) {
      std::vector<float> read(expected.size() - begin);
      ASSERT_TRUE(file->read(*tensor, static_cast<std::int64_t>(begin), read));
      EXPECT_TRUE(same_bits(read, std::span(expected).subspan(begin)));
    }
  }
}

TEST(Safetensors, AFailedWriteLeavesTheOldFileAndNothingElse) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/x.safetensors";
  write_text(path, "old");
  std::vector<float> buffer(4);
  SafetensorsWrite write;
  write.path = path;
  write.entries = {{"a", Dtype::kF32, {100}}};
  write.buffer = buffer;
  write.source = [](std::size_t, std::int64_t begin, std::span<float>) -> Status {
    return begin < 50 ? Status{} : Status{operating_error("the tensor is gone")};
  };
  const Status status = write_safetensors(write);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("the tensor is gone"), std::string::npos);
  EXPECT_EQ(*read_file(path, 100), "old");
  EXPECT_EQ(list_directory(folder.path())->size(), 1U);
  write.path = folder.path() + "/missing/x.safetensors";
  EXPECT_FALSE(write_safetensors(write));
}

}  // namespace
}  // namespace headrace::model
