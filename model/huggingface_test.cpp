// Hugging Face directories made here: what opens, what is refused, and that export gives the same
// bytes.
#include "model/huggingface.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "core/files.hpp"
#include "model/config_json.hpp"
#include "model/initialize.hpp"
#include "model/spec.hpp"
#include "model/test_support.hpp"

namespace headrace::model {
namespace {

Architecture architecture(Family family, bool tied) {
  Architecture a;
  a.family = family;
  a.layers = 2;
  a.hidden = 24;
  a.heads = 4;
  a.kv_heads = family == Family::kGpt2 ? 4 : 2;
  a.head_dim = 6;
  a.ffn = 40;
  a.vocab = 101;
  a.max_seq_len = 16;
  a.tied = tied;
  a.tokenizer = "bytes";
  a.eos_tokens = {7, 9};
  return a;
}

plan::ModelSpec spec_of(const Architecture& a) {
  return *make_model_spec(a, {.micro_batch = 1, .seq_len = 8}, {});
}

// A directory whose tensors the test may rename, drop, reshape or add before it is written.
class Directory {
 public:
  explicit Directory(const Architecture& described, Dtype dtype = Dtype::kF32) : a(described) {
    std::mt19937_64 random(test_seed());
    for (const plan::UnitSpec& unit : name_units(a)) {
      for (const plan::TensorSpec& tensor : unit.tensors) {
        add(tensor.name, tensor.shape, dtype, random);
      }
    }
  }

  void add(const std::string& name,
           const std::vector<std::int64_t>& shape,
           Dtype dtype,
           std::mt19937_64& random) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape) {
      elements *= extent;
    }
    entries.push_back({name, dtype, shape});
    values.push_back(random_floats(random, elements));
  }

  [[nodiscard]] std::size_t index(const std::string& name) const {
    const auto found = std::find_if(
        entries.begin(), entries.end(), [&](const auto& entry) { return entry.name == name; });
    return static_cast<std::size_t>(found - entries.begin());
  }

  void write() {
    write_file("model.safetensors", 0, entries.size());
    ASSERT_TRUE(
        write_file_atomically(path() + "/config.json", config_to_json(a, Dtype::kF32).dump()));
  }

  // In place of model.safetensors, shards of `count` tensors each and their index.
  void write_shards(std::size_t count) {
    write();
    std::filesystem::remove(path() + "/model.safetensors");
    weight_map = Json::object();
    for (std::size_t begin = 0; begin < entries.size(); begin += count) {
      const std::string name = "model-" + std::to_string(begin) + ".safetensors";
      const std::size_t end = std::min(begin + count, entries.size());
      write_file(name, begin, end);
      for (std::size_t i = begin; i < end; ++i) {
        weight_map.set(entries[i].name, name);
      }
    }
    write_index();
  }

  void write_index() {
    Json index = Json::object();
    index.set("weight_map", weight_map);
    ASSERT_TRUE(write_file_atomically(path() + "/model.safetensors.index.json", index.dump()));
  }

  [[nodiscard]] const std::string& path() const { return folder_.path(); }

  Architecture a;
  std::vector<SafetensorsEntry> entries;
  std::vector<std::vector<float>> values;
  Json weight_map;

 private:
  void write_file(const std::string& name, std::size_t begin, std::size_t end) {
    std::vector<float> buffer(1000);
    SafetensorsWrite write;
    write.path = path() + "/" + name;
    write.entries.assign(entries.begin() + static_cast<std::ptrdiff_t>(begin),
                         entries.begin() + static_cast<std::ptrdiff_t>(end));
    write.buffer = buffer;
    write.source = [&](std::size_t i, std::int64_t from, std::span<float> out) -> Status {
      std::copy_n(values[begin + i].begin() + from, out.size(), out.begin());
      return {};
    };
    ASSERT_TRUE(write_safetensors(write));
  }

  TemporaryFolder folder_;
};

Status export_to(const std::string& dir,
                 const HuggingFaceModel& model,
                 const plan::ModelSpec& spec,
                 Dtype dtype,
                 std::uint64_t shard_bytes_max = kShardBytesMax) {
  std::vector<float> buffer(777);
  return export_huggingface(model.architecture(),
                            spec,
                            {.dir = dir,
                             .dtype = dtype,
                             .read =
                                 [&](int unit, std::int64_t begin, std::span<float> out) {
                                   return model.read(spec, unit, begin, out);
                                 },
                             .buffer = buffer,
                             .shard_bytes_max = shard_bytes_max});
}

std::string in_folder(const std::string& dir, const std::string& name) {
  return std::filesystem::path(dir) / name;
}

// Of a directory, sorted.
std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names = *list_directory(dir);
  std::sort(names.begin(), names.end());
  return names;
}

TEST(HuggingFace, ImportAndExportOfFloat32GivesTheSameBytes) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const bool tied : {true, false}) {
      Directory directory(architecture(family, tied));
      directory.write();
      const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
      ASSERT_TRUE(model) << text_of(model.error());
      EXPECT_EQ(model->architecture(), directory.a);
      const plan::ModelSpec spec = spec_of(model->architecture());
      const TemporaryFolder out;
      ASSERT_TRUE(export_to(out.path() + "/new", *model, spec, Dtype::kF32));
      EXPECT_EQ(*read_file(out.path() + "/new/model.safetensors", 1 << 20),
                *read_file(directory.path() + "/model.safetensors", 1 << 20));
      EXPECT_TRUE(path_exists(out.path() + "/new/generation_config.json"));
      const Result<HuggingFaceModel> again = open_huggingface(out.path() + "/new", {});
      ASSERT_TRUE(again);
      EXPECT_EQ(again->architecture(), directory.a);
    }
  }
}

TEST(HuggingFace, AnyRangeOfAUnitIsReadAndPaddingIsZero) {
  std::mt19937_64 random(test_seed());
  Directory directory(architecture(Family::kGpt2, false));
  directory.write();
  const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
  ASSERT_TRUE(model);
  const plan::ModelSpec spec = spec_of(model->architecture());
  for (std::size_t unit = 0; unit < spec.units.size(); ++unit) {
    std::vector<float> expected(static_cast<std::size_t>(spec.units[unit].elements), 0.0F);
    for (const plan::TensorSpec& tensor : spec.units[unit].tensors) {
      const std::vector<float>& values = directory.values[directory.index(tensor.name)];
      std::copy(values.begin(), values.end(), expected.begin() + tensor.offset);
    }
    for (int i = 0; i < 50; ++i) {
      const std::size_t begin = random() % expected.size();
      std::vector<float> part(random() % (expected.size() - begin + 1), NAN);
      ASSERT_TRUE(
          model->read(spec, static_cast<int>(unit), static_cast<std::int64_t>(begin), part));
      ASSERT_TRUE(same_bits(part, std::span(expected).subspan(begin, part.size())));
    }
  }
}

TEST(HuggingFace, ShardsAreReadAsOneFileIs) {
  Directory directory(architecture(Family::kLlama, false));
  directory.write();
  const Result<HuggingFaceModel> whole = open_huggingface(directory.path(), {});
  ASSERT_TRUE(whole) << text_of(whole.error());
  const plan::ModelSpec spec = spec_of(whole->architecture());
  const TemporaryFolder out;
  ASSERT_TRUE(export_to(out.path() + "/whole", *whole, spec, Dtype::kF32));
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}, std::size_t{100}}) {
    directory.write_shards(count);
    const Result<HuggingFaceModel> sharded = open_huggingface(directory.path(), {});
    ASSERT_TRUE(sharded) << text_of(sharded.error());
    const std::string dir = out.path() + "/of-" + std::to_string(count);
    ASSERT_TRUE(export_to(dir, *sharded, spec, Dtype::kF32));
    EXPECT_EQ(*read_file(dir + "/model.safetensors", 1 << 20),
              *read_file(out.path() + "/whole/model.safetensors", 1 << 20));
  }
}

// A shard holds tensors as long as they fit, as transformers cuts them.
TEST(HuggingFace, WhatIsExportedInShardsReadsBackEqual) {
  Directory directory(architecture(Family::kGpt2, true));
  directory.write();
  const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
  ASSERT_TRUE(model) << text_of(model.error());
  const plan::ModelSpec spec = spec_of(model->architecture());
  const TemporaryFolder out;
  const std::string sharded = out.path() + "/sharded";
  constexpr std::uint64_t kMost = 8192;
  ASSERT_TRUE(export_to(sharded, *model, spec, Dtype::kF32, kMost));
  EXPECT_FALSE(path_exists(sharded + "/model.safetensors"));
  const Result<std::vector<std::string>> shards = weight_file_names(sharded);
  ASSERT_TRUE(shards);
  ASSERT_GT(shards->size(), 3U);
  EXPECT_EQ(shards->front(), shard_name(0, shards->size()));
  for (const std::string& name : *shards) {
    const Result<SafetensorsFile> file = SafetensorsFile::open(in_folder(sharded, name));
    ASSERT_TRUE(file);
    std::uint64_t bytes = 0;
    for (const SafetensorsTensor& tensor : file->tensors()) {
      bytes += tensor.bytes;
    }
    EXPECT_TRUE(bytes <= kMost || file->tensors().size() == 1) << name;
  }
  const Result<HuggingFaceModel> again = open_huggingface(sharded, {});
  ASSERT_TRUE(again) << text_of(again.error());
  EXPECT_EQ(again->architecture(), directory.a);
  ASSERT_TRUE(export_to(out.path() + "/whole", *again, spec, Dtype::kF32));
  EXPECT_EQ(*read_file(out.path() + "/whole/model.safetensors", 1 << 20),
            *read_file(directory.path() + "/model.safetensors", 1 << 20));
}

TEST(HuggingFace, AnExportInItsPlaceLeavesNoOtherWeights) {
  Directory directory(architecture(Family::kGpt2, true));
  directory.write();
  const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
  ASSERT_TRUE(model) << text_of(model.error());
  const plan::ModelSpec spec = spec_of(model->architecture());
  const TemporaryFolder out;
  for (const std::uint64_t most : {kShardBytesMax,
                                   std::uint64_t{8192},
                                   std::uint64_t{20000},
                                   std::uint64_t{8192},
                                   kShardBytesMax}) {
    // As one that was killed leaves it.
    ASSERT_TRUE(write_file_atomically(
        in_folder(out.path(), "model-00001-of-00099.safetensors.partial"), "half of it"));
    ASSERT_TRUE(check_export_target(out.path(), ExportOver::kExport)) << most;
    ASSERT_TRUE(export_to(out.path(), *model, spec, Dtype::kF32, most)) << most;
    std::vector<std::string> expected = *weight_file_names(out.path());
    if (expected.size() > 1) {
      expected.emplace_back("model.safetensors.index.json");
    }
    expected.insert(expected.end(), {"config.json", "generation_config.json"});
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(names_in(out.path()), expected) << most;
    EXPECT_TRUE(open_huggingface(out.path(), {})) << most;
  }
}

TEST(HuggingFace, AnExportInShardsThatFailsLeavesTheEarlierOne) {
  Directory directory(architecture(Family::kGpt2, true));
  directory.write();
  const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
  ASSERT_TRUE(model) << text_of(model.error());
  const plan::ModelSpec spec = spec_of(model->architecture());
  const TemporaryFolder out;
  ASSERT_TRUE(export_to(out.path(), *model, spec, Dtype::kF32));
  const std::vector<std::string> before = names_in(out.path());
  std::vector<float> buffer(100);
  int reads = 0;
  const Status failed = export_huggingface(
      model->architecture(),
      spec,
      {.dir = out.path(),
       .read = [&](int unit, std::int64_t begin, std::span<float> values) -> Status {
         return ++reads > 60 ? Status(operating_error("gone"))
                             : model->read(spec, unit, begin, values);
       },
       .buffer = buffer,
       .shard_bytes_max = 4000});
  EXPECT_FALSE(failed);
  EXPECT_EQ(names_in(out.path()), before);
  EXPECT_TRUE(open_huggingface(out.path(), {}));
}

TEST(HuggingFace, AnIndexAndItsShardsMustAgree) {
  Directory directory(architecture(Family::kLlama, true));
  const auto refusal = [&] {
    const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
    EXPECT_FALSE(model);
    return model ? std::string() : text_of(model.error());
  };
  directory.write_shards(5);
  const Json whole = directory.weight_map;
  const std::string norm = "model.norm.weight";
  directory.weight_map.set(norm, "model-0.safetensors");
  directory.write_index();
  EXPECT_NE(refusal().find("'model.norm.weight' is not in"), std::string::npos);
  directory.weight_map.set(norm, "../model-0.safetensors");
  directory.write_index();
  EXPECT_NE(refusal().find("not the name of a safetensors file"), std::string::npos);
  directory.weight_map = Json::object();
  for (const auto& [name, file] : *whole.as_object()) {
    if (name != norm) {
      directory.weight_map.set(name, file);
    }
  }
  directory.write_index();
  EXPECT_NE(refusal().find("does not name tensor"), std::string::npos);
  directory.weight_map = whole;
  directory.write_index();
  std::filesystem::copy_file(directory.path() + "/model-0.safetensors",
                             directory.path() + "/model-copy.safetensors");
  directory.weight_map.set("more", "model-copy.safetensors");
  directory.write_index();
  EXPECT_NE(refusal().find("both hold tensor"), std::string::npos);
  directory.weight_map = whole;
  directory.write_index();
  // All that is wrong with them is told at once.
  std::filesystem::resize_file(directory.path() + "/model-0.safetensors", 4);
  std::filesystem::remove(directory.path() + "/model-5.safetensors");
  const std::string all = refusal();
  EXPECT_NE(all.find("model-0.safetensors"), std::string::npos) << all;
  EXPECT_NE(all.find("model-5.safetensors"), std::string::npos) << all;
  directory.write_shards(5);
  std::filesystem::remove(directory.path() + "/model-5.safetensors");
  EXPECT_NE(refusal().find("model-5.safetensors': there is no such file"), std::string::npos);
  std::ofstream(directory.path() + "/model.safetensors.index.json") << "{";
  EXPECT_NE(refusal().find("not an index"), std::string::npos);
}

TEST(HuggingFace, HalfPrecisionIsWidenedAndExportedAgainUnchanged) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    Directory directory(architecture(Family::kLlama, true), dtype);
    directory.write();
    const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
    ASSERT_TRUE(model);
    const TemporaryFolder out;
    ASSERT_TRUE(export_to(out.path(), *model, spec_of(model->architecture()), dtype));
    EXPECT_EQ(*read_file(out.path() + "/model.safetensors", 1 << 20),
              *read_file(directory.path() + "/model.safetensors", 1 << 20));
  }
}

TEST(HuggingFace, NamesWithoutPrefixAndOldBuffersAreAccepted) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    std::mt19937_64 random(test_seed());
    Directory directory(architecture(family, true));
    for (SafetensorsEntry& entry : directory.entries) {
      entry.name = entry.name.substr(entry.name.find('.') + 1);
    }
    if (family == Family::kGpt2) {
      directory.add("h.0.attn.bias", {1, 1, 16, 16}, Dtype::kF32, random);
      directory.add("h.1.attn.masked_bias", {}, Dtype::kF32, random);
    } else {
      directory.add("layers.0.self_attn.rotary_emb.inv_freq", {3}, Dtype::kF32, random);
    }
    directory.write();
    const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
    ASSERT_TRUE(model) << text_of(model.error());
    std::vector<float> part(5);
    ASSERT_TRUE(model->read(spec_of(model->architecture()), 0, 0, part));
    EXPECT_TRUE(same_bits(part, std::span(directory.values[0]).first(5)));
  }
}

TEST(HuggingFace, AStoredHeadOfATiedModelMustEqualTheTable) {
  std::mt19937_64 random(test_seed());
  Directory directory(architecture(Family::kGpt2, true));
  directory.add("lm_head.weight", {101, 24}, Dtype::kF32, random);
  directory.values.back() = directory.values[directory.index("transformer.wte.weight")];
  directory.values.back().back() += 1.0F;
  directory.write();
  const Result<HuggingFaceModel> differs = open_huggingface(directory.path(), {});
  ASSERT_FALSE(differs);
  EXPECT_NE(text_of(differs.error()).find("lm_head.weight"), std::string::npos);
  directory.values.back() = directory.values[directory.index("transformer.wte.weight")];
  directory.write();
  const Result<HuggingFaceModel> equal = open_huggingface(directory.path(), {});
  ASSERT_TRUE(equal) << text_of(equal.error());
  EXPECT_NE(equal->notes().back().find("lm_head.weight"), std::string::npos);
}

TEST(HuggingFace, EveryWrongTensorIsNamedAtOnce) {
  std::mt19937_64 random(test_seed());
  Directory directory(architecture(Family::kGpt2, false));
  const std::size_t dropped = directory.index("transformer.h.0.ln_1.bias");
  directory.entries[dropped].name = "transformer.h.0.ln_1.beta";
  const std::size_t bent = directory.index("transformer.h.1.mlp.c_fc.weight");
  directory.entries[bent].shape = {40, 24};
  directory.write();
  const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ExitCode::kUsage);
  const std::string text = text_of(model.error());
  for (const char* says : {"'transformer.h.0.ln_1.bias' is missing",
                           "'transformer.h.0.ln_1.beta' is not a part",
                           "'transformer.h.1.mlp.c_fc.weight' has shape [40, 24]"}) {
    EXPECT_NE(text.find(says), std::string::npos) << says << "\n" << text;
  }
}

TEST(HuggingFace, DirectoriesThatCannotBeReadSayWhy) {
  const auto error_of = [](const std::string& path) {
    const Result<HuggingFaceModel> model = open_huggingface(path, {});
    EXPECT_FALSE(model);
    return model ? std::string() : text_of(model.error());
  };
  EXPECT_NE(error_of("/no/such/directory").find("not a directory"), std::string::npos);
  Directory directory(architecture(Family::kLlama, true));
  EXPECT_NE(error_of(directory.path()).find("config.json"), std::string::npos);
  directory.write();
  std::filesystem::remove(directory.path() + "/model.safetensors");
  EXPECT_NE(error_of(directory.path()).find("no model.safetensors"), std::string::npos);
  std::ofstream(directory.path() + "/pytorch_model.bin") << "x";
  EXPECT_NE(error_of(directory.path()).find("pickles"), std::string::npos);
}

TEST(HuggingFace, AnExportIsKnownForOneAndOnlyWrittenOverOthersWhenAsked) {
  Architecture described = architecture(Family::kGpt2, true);
  described.tokenizer.clear();
  Directory directory(described);
  directory.write();
  const auto allowed = [](const std::string& dir, ExportOver over) {
    return static_cast<bool>(check_export_target(dir, over));
  };
  EXPECT_TRUE(allowed("/no/such/directory", ExportOver::kExport));
  // The directory was written without the field that an export leaves.
  std::filesystem::remove(directory.path() + "/config.json");
  EXPECT_FALSE(allowed(directory.path(), ExportOver::kExport));
  EXPECT_TRUE(allowed(directory.path(), ExportOver::kUnfinished));
  directory.write();
  const Result<HuggingFaceModel> model = open_huggingface(directory.path(), {});
  ASSERT_TRUE(model);
  EXPECT_FALSE(allowed(directory.path(), ExportOver::kUnfinished));
  EXPECT_TRUE(allowed(directory.path(), ExportOver::kAnything));
  ASSERT_TRUE(export_to(directory.path(), *model, spec_of(described), Dtype::kF32));
  EXPECT_TRUE(allowed(directory.path(), ExportOver::kExport));
  std::ofstream(directory.path() + "/tokenizer.json") << "{}";
  EXPECT_TRUE(allowed(directory.path(), ExportOver::kExport));
  std::ofstream(directory.path() + "/model-00001-of-00002.safetensors") << "x";
  EXPECT_FALSE(allowed(directory.path(), ExportOver::kAnything));
}

}  // namespace
}  // namespace headrace::model
