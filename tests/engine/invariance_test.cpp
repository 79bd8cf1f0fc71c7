// Invariant 1: placement never changes numbers. The same steps under every placement, lookahead,
// tile size, thread count, traversal and update give equal bits, with the race checker on.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/engine/harness.hpp"

namespace headrace::testing {
namespace {

using plan::Home;
using plan::kBlockElements;
using plan::Update;

struct Family {
  const char* name;
  model::Architecture (*make)();
};

std::string family_test_name(const ::testing::TestParamInfo<Family>& info) {
  return info.param.name;
}

// Layers that are added attend to the whole sequence.
void set_layers(model::Architecture& architecture, int layers) {
  architecture.layers = layers;
  if (!architecture.slides.empty()) {
    architecture.slides.resize(static_cast<std::size_t>(layers));
  }
}

class Invariance : public ::testing::TestWithParam<Family> {
 protected:
  [[nodiscard]] RunOptions base() const {
    RunOptions options;
    options.architecture = GetParam().make();
    options.accumulate = 3;
    options.optim.lr = 1e-3;
    options.settings = ample_settings();
    return options;
  }

  // Everything in memory, nothing streams.
  [[nodiscard]] const RunRecord& reference() const {
    static std::map<std::string, RunRecord> records;
    auto found = records.find(GetParam().name);
    if (found == records.end()) {
      found = records.emplace(GetParam().name, run_engine(base())).first;
    }
    return found->second;
  }
};

TEST_P(Invariance, TrainsAtAll) {
  const RunRecord& record = reference();
  ASSERT_EQ(record.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_LT(record.losses.back(), record.losses.front());
  EXPECT_EQ(record.nvme_read_bytes, 0U);
}

TEST_P(Invariance, SeparateDeviceWithRoomForEverything) {
  for (const Home home : {Home::kDevice, Home::kHost}) {
    RunOptions options = base();
    options.settings.separate_device = true;
    options.settings.place = home;
    expect_same_bits(reference(), run_engine(options), plan::home_name(home));
  }
}

TEST_P(Invariance, SmallDeviceArena) {
  RunOptions options = base();
  options.settings.separate_device = true;
  options.settings.lookahead = 1;
  options.settings.place = Home::kHost;
  options.settings.device_memory_bytes = smallest_device_bytes(options);
  const RunRecord record = run_engine(options);
  EXPECT_TRUE(std::none_of(record.plan.units.begin() + 1,
                           record.plan.units.end() - 1,
                           [](const plan::UnitPlan& unit) { return unit.pinned; }));
  expect_same_bits(reference(), record, "two slots on the device");
}

TEST_P(Invariance, EverythingOnNvme) {
  for (const bool separate : {false, true}) {
    for (const int lookahead : {1, 4}) {
      RunOptions options = base();
      options.settings.separate_device = separate;
      options.settings.place = Home::kNvme;
      options.settings.lookahead = lookahead;
      options.settings.tile_elements = (lookahead == 1 ? 1 : 5) * kBlockElements;
      const RunRecord record = run_engine(options);
      EXPECT_GT(record.nvme_read_bytes, 0U);
      EXPECT_GT(record.nvme_write_bytes, 0U);
      expect_same_bits(
          reference(),
          record,
          "nvme, lookahead " + std::to_string(lookahead) + (separate ? ", separate device" : ""));
    }
  }
}

TEST_P(Invariance, SmallestHostBudgetAndALittleMore) {
  RunOptions options = base();
  const std::size_t smallest = smallest_host_bytes(options);
  std::uint64_t read_bytes_before = 0;
  for (const double share : {0.4, 0.1, 0.02, 0.0}) {
    options.settings.host_memory_bytes =
        smallest + static_cast<std::size_t>(
                       share * static_cast<double>(reference().host_arena_bytes - smallest));
    const RunRecord record = run_engine(options);
    EXPECT_GE(record.nvme_read_bytes, read_bytes_before);
    EXPECT_LE(record.host_arena_bytes, options.settings.host_memory_bytes);
    expect_same_bits(reference(), record, "part on host, part on nvme");
    read_bytes_before = record.nvme_read_bytes;
  }
  EXPECT_GT(read_bytes_before, 0U);
}

// From the least device memory on: first inputs of blocks wait on the host, then activations of
// more and more blocks are kept.
TEST_P(Invariance, ActivationsOfSomeBlocks) {
  RunOptions options = base();
  set_layers(options.architecture, 5);
  options.steps = 2;
  const RunRecord expected = run_engine(options);
  options.settings.separate_device = true;
  options.settings.place = plan::Home::kHost;
  options.settings.lookahead = 1;
  const RunRecord ample = run_engine(options);
  EXPECT_EQ(ample.plan.kept_blocks, 5);
  EXPECT_FALSE(ample.plan.offload_inputs);
  expect_same_bits(expected, ample, "all kept");
  const std::size_t smallest = smallest_device_bytes(options);
  bool offloaded = false, some = false;
  for (const double share : {0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8}) {
    options.settings.device_memory_bytes =
        smallest +
        static_cast<std::size_t>(share * static_cast<double>(ample.device_arena_bytes - smallest));
    const RunRecord record = run_engine(options);
    EXPECT_LE(record.device_arena_bytes, *options.settings.device_memory_bytes);
    expect_same_bits(expected,
                     record,
                     "activations of " + std::to_string(record.plan.kept_blocks) + " blocks kept" +
                         (record.plan.offload_inputs ? ", inputs offloaded" : ""));
    offloaded = offloaded || record.plan.offload_inputs;
    some = some || (record.plan.kept_blocks > 1 && record.plan.kept_blocks < 5);
  }
  EXPECT_TRUE(offloaded);
  EXPECT_TRUE(some);
}

TEST_P(Invariance, OptimizerThreadsAndTiles) {
  for (const int threads : {1, 3}) {
    for (const int blocks : {1, 5}) {
      RunOptions options = base();
      options.optimizer_threads = threads;
      options.settings.tile_elements = blocks * kBlockElements;
      expect_same_bits(reference(),
                       run_engine(options),
                       std::to_string(threads) + " threads, tiles of " + std::to_string(blocks));
    }
  }
}

// Nodes made up of the process's cores, one each, in turn: threads are bound and memory is touched
// as on a machine that has them.
TEST_P(Invariance, OptimizerNodes) {
  const std::vector<unsigned> cores = optim::CoreMask::of_this_thread()->cores();
  for (const std::size_t nodes : {2U, 4U}) {
    for (const Home home : {Home::kHost, Home::kNvme}) {
      RunOptions options = base();
      options.optimizer_threads = 5;
      for (std::size_t node = 0; node < nodes; ++node) {
        options.optimizer_nodes.push_back({cores[node % cores.size()]});
      }
      options.settings.place = home;
      options.settings.separate_device = nodes == 4;
      expect_same_bits(reference(), run_engine(options), std::to_string(nodes) + " nodes");
    }
  }
}

TEST_P(Invariance, TraversalAndUpdateOrder) {
  for (const bool nvme : {false, true}) {
    for (const bool separate : {false, true}) {
      for (const int group_size : {plan::kLayerMajor, 2, plan::kBatchMajor}) {
        for (const Update update : {Update::kHeld, Update::kAfterBackward}) {
          RunOptions options = base();
          options.settings.separate_device = separate;
          options.settings.group_size = group_size;
          options.settings.update = update;
          if (nvme) {
            options.settings.place = Home::kNvme;
          }
          expect_same_bits(reference(),
                           run_engine(options),
                           plan::traversal_name(group_size, options.accumulate) + ", " +
                               plan::update_name(update) + (nvme ? ", nvme" : "") +
                               (separate ? ", separate device" : ""));
        }
      }
    }
  }
}

// Whether steps are clipped all the time, now and then, or never; a part of what there is streams.
TEST_P(Invariance, SpeculativeUpdates) {
  RunOptions options = base();
  set_layers(options.architecture, 6);
  options.accumulate = 1;
  options.steps = std::min(kSteps, 6);
  const std::size_t sixteenths = options.architecture.tied ? 10 : 9;  // that little fits into
  options.optim.clip = 0;
  std::vector<double> norms = run_engine(options).norms;
  std::sort(norms.begin(), norms.end());
  std::set<exec::StepKind> kinds;
  for (const double clip : {0.0, norms[norms.size() / 2], 1e-3}) {
    options.optim.clip = clip;
    const RunRecord expected = run_engine(options);
    for (const bool separate : {false, true}) {
      RunOptions other = options;
      other.settings.update = Update::kSpeculative;
      other.settings.separate_device = separate;
      RunOptions ample = other;
      ample.steps = 1;
      const plan::Plan all = run_engine(ample).plan;
      other.settings.tile_elements = kBlockElements;
      other.settings.host_memory_bytes = all.host_arena_bytes / 16 * sixteenths;
      other.settings.device_memory_bytes = all.device_arena_bytes / 16 * sixteenths;
      const RunRecord record = run_engine(other);
      const std::string what =
          "clip " + std::to_string(clip) + (separate ? ", separate device" : "");
      const auto speculated = std::count_if(
          record.plan.units.begin(), record.plan.units.end(), [](const plan::UnitPlan& unit) {
            return unit.speculated;
          });
      EXPECT_GT(speculated, 1) << what;
      kinds.insert(record.kinds.begin(), record.kinds.end());
      expect_same_bits(expected, record, what);
    }
  }
  if (kSteps > 2) {
    EXPECT_EQ(kinds.size(), 4U) << "of every kind of step";
  }
}

// Kept activations take turns in few places: to NVMe, or beside a separate device to the host.
TEST_P(Invariance, SpilledActivations) {
  RunOptions options = base();
  set_layers(options.architecture, 6);
  options.seq_len = 64;
  options.architecture.max_seq_len = 64;
  options.steps = std::min(kSteps, 4);
  // Where recomputing is dear.
  options.machine.gemm_fp32_flops_per_s = 1e8;
  options.machine.nvme_read_bytes_per_s = options.machine.nvme_write_bytes_per_s = 1e11;
  const RunRecord expected = run_engine(options);
  EXPECT_EQ(expected.plan.kept_blocks, 6);
  for (const bool separate : {false, true}) {
    for (const int group_size : {plan::kLayerMajor, 2, plan::kBatchMajor}) {
      RunOptions other = options;
      other.settings.separate_device = separate;
      other.settings.group_size = group_size;
      other.settings.update = group_size == 2 ? Update::kAfterBackward : Update::kHeld;
      other.settings.place = separate ? Home::kDevice : Home::kHost;  // nothing else gives way
      RunOptions ample = other;
      ample.steps = 1;
      const plan::Plan all = run_engine(ample).plan;
      std::size_t saved = 0;
      for (const plan::Buffer& buffer : all.buffers) {
        saved += buffer.name.starts_with("saved.") ? buffer.bytes : 0;
      }
      // A third of them finds no room.
      (separate ? other.settings.device_memory_bytes.emplace(all.device_arena_bytes)
                : other.settings.host_memory_bytes = all.host_arena_bytes) -= saved / 3;
      const RunRecord record = run_engine(other);
      const std::string what = plan::traversal_name(group_size, options.accumulate) +
                               (separate ? ", separate device" : "");
      EXPECT_GT(record.plan.spilled_blocks, 0) << what;
      EXPECT_EQ(record.plan.spilled.empty(), separate) << what;
      expect_same_bits(expected, record, what);
    }
  }
}

TEST_P(Invariance, RoundedGradientsInEveryPlace) {
  RunOptions options = base();
  options.settings.grad = Dtype::kBf16;
  const RunRecord expected = run_engine(options);
  EXPECT_NE(expected.losses.back(), reference().losses.back());
  for (const bool separate : {false, true}) {
    for (const int group_size : {plan::kLayerMajor, 2, plan::kBatchMajor}) {
      RunOptions other = options;
      other.settings.separate_device = separate;
      other.settings.group_size = group_size;
      other.settings.place = Home::kNvme;
      expect_same_bits(expected,
                       run_engine(other),
                       "bf16 gradients, " + plan::traversal_name(group_size, options.accumulate) +
                           (separate ? ", separate device" : ""));
    }
  }
}

TEST_P(Invariance, GroupsAndFrozenTensors) {
  RunOptions options = base();
  options.optim.group = {{.match = {"*.0.*"},
                          .lr_scale = 1.0,
                          .betas = {},
                          .eps = {},
                          .weight_decay = {},
                          .frozen = true},
                         {.match = {"*.1.*weight"},
                          .lr_scale = 0.5,
                          .betas = std::array<double, 2>{0.8, 0.99},
                          .eps = 1e-6,
                          .weight_decay = 0.3,
                          .frozen = false}};
  options.settings.tile_elements = kBlockElements;
  const RunRecord expected = run_engine(options);
  for (const bool separate : {false, true}) {
    RunOptions other = options;
    other.settings.separate_device = separate;
    other.settings.place = Home::kNvme;
    other.settings.tile_elements = 5 * kBlockElements;
    expect_same_bits(
        expected, run_engine(other), separate ? "frozen, separate device" : "frozen, nvme");
  }
}

TEST_P(Invariance, EvaluationInTheMiddleChangesNothing) {
  RunOptions options = base();
  options.evaluate_after = kSteps / 2;
  const RunRecord in_memory = run_engine(options);
  expect_same_bits(reference(), in_memory, "evaluation in between");
  options.settings.place = Home::kNvme;
  options.settings.separate_device = true;
  const RunRecord streamed = run_engine(options);
  expect_same_bits(reference(), streamed, "evaluation in between, nvme");
  EXPECT_EQ(in_memory.evaluations, streamed.evaluations);
}

INSTANTIATE_TEST_SUITE_P(Families,
                         Invariance,
                         ::testing::Values(Family{"Gpt2Tied", small_gpt2},
                                           Family{"LlamaUntied", small_llama},
                                           Family{"Qwen3", small_qwen3}),
                         family_test_name);

}  // namespace
}  // namespace headrace::testing
