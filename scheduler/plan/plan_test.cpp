// The planner's promises: layout rules, exact waits, budgets, hints that work, and the arithmetic
// of the table. Random programs print their seed.
#include "scheduler/plan/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <string>

#include "scheduler/plan/builder.hpp"
#include "scheduler/plan/choices.hpp"
#include "scheduler/plan/rates.hpp"
#include "scheduler/plan/refusal.hpp"
#include "scheduler/plan/summary.hpp"

namespace headrace::plan {
namespace {

std::uint64_t test_seed() {
  const char* text = std::getenv("HEADRACE_SEED");
  const std::uint64_t seed =
      text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device()();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  (void)std::fprintf(stderr, "HEADRACE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TensorSpec tensor(std::string name, std::vector<std::int64_t> shape, bool frozen = false) {
  TensorSpec spec;
  spec.name = std::move(name);
  spec.shape = std::move(shape);
  spec.frozen = frozen;
  return spec;
}

// A model of plain numbers: an embedding, blocks of three tensors, a head.
ModelSpec make_model(
    std::int64_t hidden, int blocks, std::int64_t vocab, bool tied, std::int64_t accumulate = 1) {
  ModelSpec model;
  model.hidden = hidden;
  model.vocab = vocab;
  model.tied = tied;
  model.micro_batch = 2;
  model.seq_len = 64;
  model.accumulate = accumulate;
  model.groups.resize(1);
  UnitSpec embedding;
  embedding.name = "embedding";
  embedding.kind = UnitKind::kEmbedding;
  embedding.tensors = {tensor("wte", {vocab, hidden})};
  embedding.tensors[0].own_pages = tied;
  lay_out(embedding);
  model.tables = {{.tensor = 0, .rows = vocab, .index = RowTable::Index::kToken}};
  UnitSpec head;
  head.name = "head";
  head.kind = UnitKind::kHead;
  head.tensors = {tensor("norm", {hidden})};
  if (!tied) {
    head.tensors.push_back(tensor("lm_head", {vocab, hidden}));
    head.tensors[1].own_pages = true;
  }
  lay_out(head);
  head.pieces = {{.begin = 0, .elements = tied ? head.elements : head.tensors[1].offset}};
  model.units.push_back(embedding);
  for (int b = 0; b < blocks; ++b) {
    UnitSpec block;
    block.name = "block." + std::to_string(b);
    block.tensors = {tensor("gain", {hidden}),
                     tensor("up", {4 * hidden, hidden}),
                     tensor("down", {hidden, 4 * hidden})};
    lay_out(block);
    block.pieces = {{.begin = 0, .elements = block.elements}};
    block.cost = {.forward = {.attention_forward_flops = 1e9},
                  .backward = {.attention_backward_flops = 2e9},
                  .forward_workspace_bytes = 1 << 16,
                  .backward_workspace_bytes = 1 << 17,
                  .saved_bytes = 1 << 18};
    model.units.push_back(block);
  }
  model.units.push_back(head);
  const int rows_unit = tied ? 0 : static_cast<int>(model.units.size()) - 1;
  model.head.rows =
      cut_rows(model.units[static_cast<std::size_t>(rows_unit)], rows_unit, tied ? 0 : 1, 64);
  model.head.rows_per_chunk = 64;
  model.head.state_bytes = 4096;
  model.head.score.forward_workspace_bytes = 1 << 16;
  model.head.gradient.backward_workspace_bytes = 1 << 16;
  return model;
}

PlanSettings roomy() {
  PlanSettings settings;
  settings.host_memory_bytes = std::size_t{8} << 30;
  settings.host_available_bytes = std::size_t{16} << 30;
  settings.device_available_bytes = std::size_t{8} << 30;
  return settings;
}

TEST(Layout, LargeTensorsStartAtPagesAndSmallOnesAtMultiplesOf64) {
  UnitSpec unit;
  unit.tensors = {tensor("a", {7}),
                  tensor("b", {65}),
                  tensor("c", {2048}),
                  tensor("d", {3}),
                  tensor("e", {5}, true),
                  tensor("f", {0}),
                  tensor("g", {100000})};
  lay_out(unit);
  EXPECT_EQ(unit.tensors[0].offset, 0);
  EXPECT_EQ(unit.tensors[1].offset, 64);
  EXPECT_EQ(unit.tensors[2].offset, 2048);
  EXPECT_EQ(unit.tensors[3].offset, 4096);
  EXPECT_EQ(unit.tensors[4].offset % kPageElements, 0) << "frozen changes";
  EXPECT_EQ(unit.tensors[5].offset % kPageElements, 0) << "frozen changes back";
  EXPECT_EQ(unit.tensors[6].offset % kPageElements, 0);
  EXPECT_EQ(unit.elements % kPageElements, 0);
  EXPECT_GE(unit.elements, unit.tensors[6].offset + 100000);
}

// Random units: tiles cover them exactly, start at pages, respect pieces and frozen edges, and cut
// tensors at blocks only.
TEST(Tiles, CoverEveryElementOnceAndCutOnlyWhereTheyMay) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    UnitSpec unit;
    const int tensors = 1 + static_cast<int>(random() % 8);
    for (int i = 0; i < tensors; ++i) {
      const auto size = static_cast<std::int64_t>(random() % (random() % 3 == 0 ? 400000 : 3000));
      unit.tensors.push_back(tensor("t" + std::to_string(i), {size}, random() % 3 == 0));
    }
    lay_out(unit);
    const std::int64_t tile_elements = kBlockElements * static_cast<std::int64_t>(1 + random() % 5);
    std::int64_t at = 0;
    for (const TileSpec& tile : cut_tiles(unit, tile_elements)) {
      ASSERT_EQ(tile.begin, at) << "seed " << seed;
      ASSERT_GT(tile.elements, 0);
      ASSERT_EQ(tile.begin % kPageElements, 0);
      for (const TensorSpec& one : unit.tensors) {
        const std::int64_t begin = std::max(one.offset, tile.begin),
                           end = std::min(one.offset + one.elements, tile.begin + tile.elements);
        if (begin < end) {
          ASSERT_EQ(one.frozen, tile.frozen) << "seed " << seed;
          ASSERT_EQ((begin - one.offset) % kBlockElements, 0) << "seed " << seed;
        }
      }
      at += tile.elements;
    }
    ASSERT_EQ(at, unit.elements);
  }
}

TEST(Rows, PiecesHoldEveryRowOnceAndBeginAtPages) {
  for (const std::int64_t hidden : {1, 3, 48, 64, 100, 384, 768, 1600}) {
    UnitSpec unit;
    unit.tensors = {tensor("norm", {hidden}), tensor("rows", {1003, hidden})};
    unit.tensors[1].own_pages = true;
    lay_out(unit);
    std::int64_t next = 0;
    for (const RowPiece& piece : cut_rows(unit, 5, 1, 100)) {
      EXPECT_EQ(piece.first_row, next);
      const PieceSpec& range = unit.pieces[static_cast<std::size_t>(piece.piece)];
      EXPECT_EQ(range.begin % kPageElements, 0);
      EXPECT_EQ((range.begin - unit.tensors[1].offset) % kBlockElements, 0);
      EXPECT_GE(range.elements, piece.rows * hidden);
      EXPECT_LE(range.begin + range.elements, unit.elements);
      next += piece.rows;
    }
    EXPECT_EQ(next, 1003);
  }
}

// Reachability over queue order and waits: what derive_waits must make true for every conflicting
// pair, and what it must not say twice.
struct Graph {
  explicit Graph(const Program& program)
      : reach(program.instructions.size(), std::vector<char>(program.instructions.size(), 0)) {
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      std::vector<std::size_t> before(instruction.waits.begin(), instruction.waits.end());
      for (std::size_t j = i; j-- > 0;) {
        const Instruction& other = program.instructions[j];
        if (other.queue == instruction.queue &&
            (other.queue != QueueKind::kNvme || other.lane == instruction.lane)) {
          before.push_back(j);
          break;
        }
      }
      for (const std::size_t j : before) {
        reach[i][j] = 1;
        for (std::size_t k = 0; k < j; ++k) {
          reach[i][k] = static_cast<char>(reach[i][k] | reach[j][k]);
        }
      }
    }
  }

  std::vector<std::vector<char>> reach;
};

bool conflict(const Instruction& a, const Instruction& b) {
  for (const Access& x : a.accesses) {
    for (const Access& y : b.accesses) {
      const bool writes = x.mode != AccessMode::kRead || y.mode != AccessMode::kRead;
      if (writes && x.buffer >= 0 && x.buffer == y.buffer && x.offset < y.offset + y.bytes &&
          y.offset < x.offset + x.bytes) {
        return true;
      }
    }
  }
  return false;
}

// Every two conflicting instructions are ordered by queues and waits.
void expect_ordered(const Program& program) {
  const Graph graph(program);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      ASSERT_TRUE(!conflict(program.instructions[i], program.instructions[j]) || graph.reach[i][j])
          << program.name;
    }
  }
}

Program random_program(std::mt19937_64& random, std::size_t count) {
  Program program;
  for (std::size_t i = 0; i < count; ++i) {
    Instruction instruction;
    instruction.queue = static_cast<QueueKind>(random() % 5);
    instruction.lane = static_cast<int>(random() % 3);
    for (std::size_t a = 0; a < 1 + random() % 3; ++a) {
      instruction.accesses.push_back({.buffer = static_cast<int>(random() % 4),
                                      .offset = random() % 8,
                                      .bytes = 1 + random() % 6,
                                      .mode = static_cast<AccessMode>(random() % 3),
                                      .content = 0});
    }
    program.instructions.push_back(instruction);
  }
  return program;
}

TEST(Waits, OrderEveryConflictAndNoneTwice) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    Program program = random_program(random, 40);
    // Disjoint, and of every kind of space.
    const std::vector<Buffer> buffers = {
        {.name = "a", .tier = MemoryTier::kHost, .offset = 0, .bytes = 16},
        {.name = "b", .tier = MemoryTier::kHost, .offset = 16, .bytes = 16},
        {.name = "c", .tier = MemoryTier::kDevice, .offset = 0, .bytes = 16},
        {.name = "d", .tier = MemoryTier::kStore, .offset = 0, .bytes = 16}};
    derive_waits(program, buffers);
    const Graph graph(program);
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (conflict(program.instructions[i], program.instructions[j])) {
          ASSERT_TRUE(graph.reach[i][j]) << "seed " << seed << ": " << j << " before " << i;
        }
      }
      std::vector<int>& waits = program.instructions[i].waits;
      if (!waits.empty()) {
        // The last of the waits is needed: without it, something unordered is left.
        const int removed = waits.back();
        waits.pop_back();
        ASSERT_FALSE(Graph(program).reach[i][static_cast<std::size_t>(removed)]) << "seed " << seed;
        waits.push_back(removed);
      }
    }
  }
}

TEST(Plan, ProgramsOrderEveryConflict) {
  for (const bool separate : {false, true}) {
    for (const bool tied : {false, true}) {
      PlanSettings settings = roomy();
      settings.separate_device = separate;
      settings.place = Home::kNvme;
      settings.tile_elements = kBlockElements;
      const ModelSpec model = make_model(96, 3, 700, tied, 2);
      const auto plan = make_plan(model, settings, {});
      ASSERT_TRUE(plan);
      for (const Program* program :
           {&plan->compute, &plan->compute_held, &plan->drain, &plan->evaluation}) {
        expect_ordered(*program);
      }
    }
  }
}

TEST(Plan, BuffersOfATierDoNotOverlapAndFillTheArena) {
  PlanSettings settings = roomy();
  settings.separate_device = true;
  const auto plan = make_plan(make_model(96, 3, 700, true, 3), settings, {});
  ASSERT_TRUE(plan);
  for (const MemoryTier tier : {MemoryTier::kDevice, MemoryTier::kHost}) {
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const Buffer& buffer : plan->buffers) {
      if (buffer.tier == tier) {
        EXPECT_EQ(buffer.offset % 4096, 0U);
        ranges.emplace_back(buffer.offset, buffer.offset + buffer.bytes);
      }
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      EXPECT_LE(ranges[i - 1].second, ranges[i].first);
    }
    EXPECT_LE(ranges.back().second,
              tier == MemoryTier::kDevice ? plan->device_arena_bytes : plan->host_arena_bytes);
  }
}

TEST(Plan, MemoryTableAddsUpToTheArenas) {
  for (const bool separate : {false, true}) {
    PlanSettings settings = roomy();
    settings.separate_device = separate;
    const auto plan = make_plan(make_model(96, 3, 700, true, 3), settings, {});
    ASSERT_TRUE(plan);
    std::uint64_t device = 0, host = 0;
    for (const MemoryRow& row : plan->memory) {
      if (row.purpose != "process") {
        device += row.device_bytes;
        host += row.host_bytes;
      }
    }
    EXPECT_EQ(device, plan->device_arena_bytes);
    EXPECT_EQ(host, plan->host_arena_bytes);
  }
}

TEST(Plan, MemoryTableShowsWhatLiesOutsideTheArenas) {
  PlanSettings settings = roomy();
  settings.process_bytes = 12345;
  settings.reserve_bytes = 67890;
  const auto plan = make_plan(make_model(96, 2, 700, true), settings, {});
  ASSERT_TRUE(plan);
  const auto host_bytes = [&plan](const char* purpose) {
    for (const MemoryRow& row : plan->memory) {
      if (row.purpose == purpose) {
        return row.host_bytes;
      }
    }
    return std::uint64_t{0};
  };
  EXPECT_EQ(host_bytes("process"), 12345U);
  EXPECT_EQ(host_bytes("reserve"), 67890U);
}

// The number behind `key` in a hint; 0: not there.
std::size_t number_after(const std::string& hint, const std::string& key) {
  const std::size_t at = hint.find(key);
  return at == std::string::npos ? 0 : std::strtoull(hint.c_str() + at + key.size(), nullptr, 10);
}

// State on NVMe, a drive that endures ten times what the run writes, and one byte less.
TEST(Plan, ARunThatWearsTheDriveIsWarnedOfWithALineThatMendsIt) {
  const ModelSpec model = make_model(256, 6, 3000, false, 2);
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.steps = 1001;
  auto plan = make_plan(model, settings, {});
  ASSERT_TRUE(plan);
  const auto written = static_cast<double>(plan->written_bytes_per_step);
  ASSERT_GT(written, 0);
  settings.endurance_bytes = 10 * written * 1001;
  EXPECT_EQ(make_plan(model, settings, {})->wear_warning, "");

  // The machine is large enough.
  settings.endurance_bytes = 10 * written * 100;
  settings.host_memory_bytes = plan->host_arena_bytes;
  settings.usable_bytes = std::size_t{8} << 30;
  plan = make_plan(model, settings, {});
  EXPECT_NE(plan->wear_warning.find("tiers.place=\"auto\""), std::string::npos);
  PlanSettings mended = settings;
  mended.place.reset();
  mended.host_memory_bytes = number_after(plan->wear_warning, "tiers.host_memory=\"") << 20;
  EXPECT_EQ(make_plan(model, mended, {})->wear_warning, "") << plan->wear_warning;

  // It is not.
  settings.usable_bytes = settings.host_memory_bytes;
  plan = make_plan(model, settings, {});
  EXPECT_EQ(plan->wear_warning.find("tiers."), std::string::npos) << plan->wear_warning;
  ModelSpec larger = model;
  larger.accumulate =
      static_cast<std::int64_t>(number_after(plan->wear_warning, "batch.accumulate="));
  mended = settings;
  mended.steps = static_cast<std::int64_t>(number_after(plan->wear_warning, "run.steps="));
  EXPECT_GE(larger.accumulate * mended.steps, model.accumulate * settings.steps);
  mended.host_memory_bytes = std::size_t{8} << 30;  // of the activations
  EXPECT_EQ(make_plan(larger, mended, {})->wear_warning, "") << plan->wear_warning;

  // All is in memory, and every step is committed.
  settings = roomy();
  settings.place = Home::kHost;
  settings.steps = 1001;
  settings.store_slots = 2;
  settings.commit_interval = {.steps = 1, .seconds = 0};
  plan = make_plan(model, settings, {});
  ASSERT_TRUE(plan);
  settings.endurance_bytes = 1e4 * static_cast<double>(plan->written_bytes_per_step);
  plan = make_plan(model, settings, {});
  EXPECT_EQ(number_after(plan->wear_warning, "durability.checkpoint=\""), 1U) << plan->wear_warning;
}

// Sets what a way out says, of what the planner offers by itself.
void make_changes(const WayOut& way, PlanSettings& settings) {
  for (const std::string& set : way.sets) {
    const auto is = [&set](const char* key) { return set.starts_with(std::string(key) + "="); };
    const std::size_t mebibytes = number_after(set, "=\"");
    if (is("tiers.host_memory")) {
      settings.host_memory_bytes = mebibytes << 20;
    } else if (is("tiers.device_memory")) {
      settings.device_memory_bytes = mebibytes << 20;
    } else if (is("tiers.place")) {
      settings.place = Home::kNvme;
    } else if (is("batch.traversal")) {
      settings.traversal.reset();
    } else if (is("tiers.lookahead")) {
      settings.lookahead = 1;
    } else if (is("optim.update")) {
      settings.update = Update::kAfterBackward;
    } else {
      FAIL() << set;
    }
  }
}

TEST(Plan, ARunThatDoesNotFitIsRefusedWithLinesThatWork) {
  const ModelSpec model = make_model(256, 6, 3000, false, 4);
  std::size_t ways = 0;
  for (const auto place : {std::optional<Home>(), std::optional(Home::kHost)}) {
    for (const std::size_t host_mebibytes : {1U, 25U, 60U}) {
      for (const std::size_t device_mebibytes : {0U, 1U, 6U}) {
        PlanSettings settings = roomy();
        settings.place = place;
        settings.lookahead = 3;
        settings.traversal = Traversal::kLayerMajor;
        settings.host_memory_bytes = host_mebibytes << 20;
        settings.separate_device = device_mebibytes > 0;
        if (settings.separate_device) {
          settings.device_memory_bytes = device_mebibytes << 20;
        }
        const auto refused = make_plan(model, settings, {});
        if (refused) {
          continue;
        }
        EXPECT_EQ(refused.error().code, ExitCode::kDoesNotFit);
        const Refusal refusal = refuse(model, settings);
        ASSERT_FALSE(refusal.ways.empty());
        for (const WayOut& way : refusal.ways) {
          EXPECT_NE(refused.error().hint.find(way.line()), std::string::npos);
          PlanSettings changed = settings;
          make_changes(way, changed);
          EXPECT_TRUE(make_plan(model, changed, {})) << way.line();
          ++ways;
        }
      }
    }
  }
  EXPECT_GT(ways, 20U);
}

TEST(Plan, ARefusalSaysByHowMuchToTheByte) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  PlanSettings settings = roomy();
  settings.host_memory_bytes = std::size_t{1} << 20;
  const Refusal refusal = refuse(model, settings);
  ASSERT_EQ(refusal.tiers.size(), 1U);
  EXPECT_EQ(refusal.tiers[0].budget_bytes, std::uint64_t{1} << 20);
  ASSERT_FALSE(refusal.largest.empty());
  for (std::size_t i = 1; i < refusal.largest.size(); ++i) {
    EXPECT_GE(refusal.largest[i - 1].bytes, refusal.largest[i].bytes);
  }
  settings.host_memory_bytes += refusal.tiers[0].missing_bytes();
  EXPECT_TRUE(make_plan(model, settings, {}));
  settings.host_memory_bytes -= 1;
  EXPECT_FALSE(make_plan(model, settings, {}));
}

TEST(Plan, ARefusalWithoutAWayOutSaysWhatIsNeeded) {
  PlanSettings settings = roomy();
  settings.host_memory_bytes = std::size_t{1} << 20;
  settings.usable_bytes = std::size_t{2} << 20;
  const auto refused = make_plan(make_model(256, 6, 3000, false, 1), settings, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().hint.find("2.0 MiB can be had"), std::string::npos)
      << refused.error().hint;
}

// A change of the caller's is one of the ways, the mildest of its group.
TEST(Plan, ChangesOfTheCallerAreTriedFromTheMildestOn) {
  PlanSettings settings = roomy();
  settings.host_memory_bytes = std::size_t{20} << 20;
  std::vector<Change> changes;
  for (const int blocks : {5, 2, 1, 0}) {
    changes.push_back({.group = "blocks",
                       .sets = {"model.layers=" + std::to_string(blocks)},
                       .changes_numbers = true,
                       .apply = [=](ModelSpec& model, PlanSettings&) {
                         model = make_model(256, blocks, 3000, false, 1);
                         return true;
                       }});
  }
  const Refusal refusal = refuse(make_model(256, 6, 3000, false, 1), settings, changes);
  int least = -1;
  for (const int blocks : {0, 1, 2, 5}) {
    least = make_plan(make_model(256, blocks, 3000, false, 1), settings, {}) ? blocks : least;
  }
  ASSERT_GE(least, 0);
  const auto found = std::find_if(refusal.ways.begin(), refusal.ways.end(), [&](const WayOut& way) {
    return way.line() == "--set model.layers=" + std::to_string(least);
  });
  ASSERT_NE(found, refusal.ways.end());
  EXPECT_TRUE(found->changes_numbers);
}

TEST(Plan, OnlyTheBudgetThatIsTooSmallIsInTheHint) {
  PlanSettings settings = roomy();
  settings.host_memory_bytes = settings.host_available_bytes;  // as "auto" resolves
  settings.separate_device = true;
  settings.place = Home::kHost;
  settings.device_memory_bytes = std::size_t{64} << 10;
  const auto refused = make_plan(make_model(96, 3, 700, true), settings, {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().hint.find("--set tiers.device_memory="), std::string::npos)
      << refused.error().hint;
  EXPECT_EQ(refused.error().hint.find("host_memory"), std::string::npos) << refused.error().hint;
}

TEST(Plan, TheSummaryOfAStepAddsUp) {
  const ModelSpec model = make_model(256, 6, 3000, false, 2);
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.steps = 10;
  settings.endurance_bytes = 1e12;
  const auto plan = make_plan(model, settings, {});
  ASSERT_TRUE(plan);
  const Prediction& steady = *find_prediction(*plan, "steady");
  const StepSummary step = summarize(model, *plan);
  EXPECT_EQ(step.seconds, steady.seconds);
  EXPECT_EQ(step.tokens, 2 * 2 * 64);
  EXPECT_DOUBLE_EQ(step.tokens_per_s * step.seconds, 256);
  std::uint64_t moved = 0;
  for (const ResourceUse& use : step.resources) {
    EXPECT_DOUBLE_EQ(use.share * step.seconds, use.busy_seconds);
    for (const auto& [link, bytes] : use.bytes) {
      moved += bytes;
    }
  }
  std::uint64_t of_links = 0;
  for (const auto& [link, bytes] : steady.link_bytes) {
    of_links += bytes;
  }
  EXPECT_EQ(moved, of_links);
  const TokenBudget budget = budget_tokens(*plan, step, 1001);
  EXPECT_EQ(budget.steps, 4) << "the last one is whole";
  EXPECT_DOUBLE_EQ(budget.seconds, 4 * step.seconds);
  EXPECT_DOUBLE_EQ(budget.endurance_share,
                   4 * static_cast<double>(plan->written_bytes_per_step) / 1e12);
}

TEST(Plan, MoreHostMemoryNeverMeansMoreBytesOverNvme) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  std::uint64_t before = ~std::uint64_t{0};
  for (const std::size_t mebibytes : {40U, 60U, 80U, 120U, 200U, 400U}) {
    PlanSettings settings = roomy();
    settings.host_memory_bytes = mebibytes << 20;
    const auto plan = make_plan(model, settings, {});
    if (!plan) {
      continue;
    }
    const Prediction* steady = find_prediction(*plan, "steady");
    ASSERT_NE(steady, nullptr);
    std::uint64_t bytes = 0;
    for (const char* link : {"nvme_read", "nvme_write"}) {
      const auto found = steady->link_bytes.find(link);
      bytes += found == steady->link_bytes.end() ? 0 : found->second;
    }
    EXPECT_LE(bytes, before) << mebibytes << " MiB";
    before = bytes;
  }
  EXPECT_EQ(before, 0U) << "everything fits at last";
}

TEST(Plan, FrozenTensorsHaveNoGradientNoStateAndNoWrites) {
  ModelSpec model = make_model(96, 3, 700, false, 1);
  for (TensorSpec& one : model.units[1].tensors) {
    one.frozen = true;
  }
  lay_out(model.units[1]);
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  const auto plan = make_plan(model, settings, {});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->units[1].gradient, -1);
  EXPECT_EQ(plan->units[1].state, -1);
  for (const Program* program : {&plan->compute_held, &plan->drain}) {
    for (const Instruction& instruction : program->instructions) {
      const bool stores = instruction.kind == InstructionKind::kUpdate ||
                          instruction.kind == InstructionKind::kWriteParam ||
                          instruction.kind == InstructionKind::kWriteState;
      EXPECT_FALSE(stores && instruction.unit == 1);
    }
  }
}

TEST(Plan, HeldUpdatesEachTrainableTileOnceBeforeItsFirstUse) {
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.tile_elements = kBlockElements;
  settings.traversal = Traversal::kBatchMajor;
  const auto plan = make_plan(make_model(96, 3, 700, true, 3), settings, {});
  ASSERT_TRUE(plan);
  std::map<std::pair<int, int>, int> updates;
  std::map<int, bool> used;
  for (const Instruction& instruction : plan->compute_held.instructions) {
    if (instruction.kind == InstructionKind::kUpdate) {
      EXPECT_FALSE(used[instruction.unit] && instruction.unit != 0)
          << "unit " << instruction.unit << " was used before its update";
      updates[{instruction.unit, instruction.index}]++;
    } else if (instruction.kind == InstructionKind::kForward) {
      used[instruction.unit] = true;
    }
  }
  for (std::size_t u = 0; u < plan->units.size(); ++u) {
    for (std::size_t t = 0; t < plan->units[u].tiles.size(); ++t) {
      EXPECT_EQ((updates[{static_cast<int>(u), static_cast<int>(t)}]), 1);
    }
  }
}

TEST(Simulation, ResourcesAreNeverUsedBeyondTheirTime) {
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.separate_device = true;
  MachineProfile machine;
  machine.nvme_read_bytes_per_s = 2e9;
  machine.nvme_write_bytes_per_s = 1e9;
  machine.gemm_fp32_flops_per_s = 1e11;
  const auto plan = make_plan(make_model(256, 6, 3000, false, 2), settings, machine);
  ASSERT_TRUE(plan);
  for (const Prediction& prediction : plan->predictions) {
    EXPECT_GE(prediction.seconds, prediction.bound_seconds * (1 - 1e-9)) << prediction.variant;
    for (const auto& [resource, seconds] : prediction.busy_seconds) {
      EXPECT_LE(seconds, prediction.seconds * (1 + 1e-9)) << prediction.variant << " " << resource;
    }
  }
}

TEST(Simulation, TheSlowestLinkDecides) {
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  MachineProfile machine;
  machine.gemm_fp32_flops_per_s = 1e15;
  machine.memory_bytes_per_s = 1e13;
  machine.update_rates["fp32"].update_params_per_s = 1e13;
  machine.nvme_read_bytes_per_s = machine.nvme_write_bytes_per_s = 1e6;
  const auto plan = make_plan(make_model(256, 6, 3000, false, 1), settings, machine);
  ASSERT_TRUE(plan);
  const Prediction* steady = find_prediction(*plan, "steady");
  const double transfer_seconds = static_cast<double>(steady->link_bytes.at("nvme_read") +
                                                      steady->link_bytes.at("nvme_write")) /
                                  1e6;
  EXPECT_NEAR(steady->busy_seconds.at("nvme"), transfer_seconds, 1e-3 * transfer_seconds);
  EXPECT_LE(steady->bound_seconds, transfer_seconds);
  EXPECT_LT(steady->seconds, 1.05 * transfer_seconds);
}

// The numbers of optim_cpu's table.
StateFormat bf16_format() {
  return {
      .name = "bf16", .param_bytes = 4, .group_bytes = 4, .group_elements = 1, .decoded = false};
}

StateFormat q8_format() {
  return {
      .name = "q8", .param_bytes = 2, .group_bytes = 208, .group_elements = 64, .decoded = true};
}

std::uint64_t bytes_over(const Plan& plan, const char* variant, const char* link) {
  const Prediction* prediction = find_prediction(plan, variant);
  const auto found = prediction->link_bytes.find(link);
  return found == prediction->link_bytes.end() ? 0 : found->second;
}

// On the drive an update reads and writes both extents of every tile once; the table and a commit
// of what is in memory say the same bytes.
TEST(Formats, BytesOnTheDriveAndOfACommitAreThoseOfTheExtents) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    std::int64_t elements = 0;
    PlanSettings settings = roomy();
    settings.format = format;
    settings.place = Home::kNvme;
    settings.update = Update::kAfterBackward;
    const auto streamed = make_plan(model, settings, {});
    ASSERT_TRUE(streamed);
    std::uint64_t extents = 0;
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      elements += model.units[u].elements;
      for (const TileSpec& tile : streamed->units[u].tiles) {
        extents += format.param_extent_bytes(tile) + format.state_extent_bytes(tile);
        EXPECT_EQ(format.state_extent_bytes(tile) % 4096, 0U);
      }
    }
    EXPECT_EQ(streamed->nvme_bytes, extents) << format.name;
    EXPECT_EQ(bytes_over(*streamed, "steady", "nvme_write"), extents) << format.name;
    const double expected = format.bytes_per_parameter() * static_cast<double>(elements);
    EXPECT_NEAR(static_cast<double>(extents), expected, 0.01 * expected) << format.name;
    EXPECT_EQ(streamed->written_bytes_per_step, extents) << format.name;

    settings.place = Home::kHost;
    const auto held = make_plan(model, settings, {});
    ASSERT_TRUE(held);
    EXPECT_EQ(bytes_over(*held, "steady", "nvme_write"), 0U);
    EXPECT_EQ(bytes_over(*held, "commit", "commit"), extents) << format.name;
  }
}

// The work of optimizer instructions of a program, and what the plan says that it takes.
struct OptimizerWork {
  double updated = 0, updated_decoded = 0, decoded = 0;  // elements
  double update_seconds = 0, decode_seconds = 0;
};

OptimizerWork optimizer_work(const Program& program) {
  OptimizerWork work;
  for (const Instruction& instruction : program.instructions) {
    const auto elements = static_cast<double>(instruction.elements);
    if (instruction.kind == InstructionKind::kUpdate) {
      const bool decodes = instruction.accesses[3].buffer >= 0;
      (decodes ? work.updated_decoded : work.updated) += elements;
      work.update_seconds += instruction.seconds;
    } else if (instruction.kind == InstructionKind::kDecode) {
      work.decoded += elements;
      work.decode_seconds += instruction.seconds;
    }
  }
  return work;
}

MachineProfile machine_of_rates() {
  MachineProfile machine;
  machine.gemm_fp32_flops_per_s = 1e12;
  for (auto& of_pass : machine.gemm) {
    of_pass.fill({.sizes = {64}, .rates = {1e12}});
  }
  machine.memory_bytes_per_s = 20e9;
  machine.update_rates["fp32"] = {.update_params_per_s = 1e6};
  machine.update_rates["bf16"] = {.update_params_per_s = 2e6};
  machine.update_rates["q8"] = {.update_params_per_s = 0.5e6,
                                .update_decoded_params_per_s = 0.25e6,
                                .decode_params_per_s = 4e6};
  return machine;
}

// Slow updates, so that they decide the step: the simulated time follows the format's own rate.
TEST(Prices, UpdatesTakeTheTimeOfTheRunsFormat) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  const MachineProfile machine = machine_of_rates();
  PlanSettings settings = roomy();
  settings.place = Home::kHost;
  settings.update = Update::kAfterBackward;
  std::map<std::string, double> steady;
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    settings.format = format;
    const auto plan = make_plan(model, settings, machine);
    ASSERT_TRUE(plan);
    const OptimizerWork work = optimizer_work(plan->drain);
    const double elements = work.updated + work.updated_decoded;
    EXPECT_GE(elements, static_cast<double>(model.trainable_parameters())) << format.name;
    const UpdateRates& rates = machine.update_rates.at(format.name);
    double expected = work.updated / rates.update_params_per_s;
    if (format.decoded) {
      expected += work.updated_decoded / rates.update_decoded_params_per_s;
    }
    EXPECT_NEAR(work.update_seconds, expected, 1e-9 * expected) << format.name;
    const Prediction* prediction = find_prediction(*plan, "steady");
    EXPECT_GE(prediction->busy_seconds.at("cores"), expected) << format.name;
    steady[format.name] = prediction->seconds;
    EXPECT_TRUE(plan->notes.empty()) << plan->notes.front();
  }
  EXPECT_NEAR(steady["fp32"] / steady["bf16"], 2, 0.1);
  EXPECT_GT(steady["q8"], 1.9 * steady["fp32"]);
}

// With held updates weights are wanted as floats at once: the update's rate is another one. What
// is used without being updated is decoded, at its own.
TEST(Prices, DecodingTakesItsOwnTime) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  const MachineProfile machine = machine_of_rates();
  PlanSettings settings = roomy();
  settings.place = Home::kNvme;
  settings.update = Update::kHeld;
  settings.format = q8_format();
  const auto plan = make_plan(model, settings, machine);
  ASSERT_TRUE(plan);
  const OptimizerWork held = optimizer_work(plan->compute_held);
  EXPECT_GT(held.updated_decoded, 0);
  const double expected = held.updated / 0.5e6 + held.updated_decoded / 0.25e6;
  EXPECT_NEAR(held.update_seconds, expected, 1e-9 * expected);
  const OptimizerWork evaluation = optimizer_work(plan->evaluation);
  EXPECT_GT(evaluation.decoded, 0);
  EXPECT_NEAR(evaluation.decode_seconds, evaluation.decoded / 4e6, 1e-9);
  const OptimizerWork drain = optimizer_work(plan->drain);
  EXPECT_EQ(drain.updated_decoded, 0) << "nothing reads what the drain updates";
}

// An older profile: all goes at the rate of "fp32", plus what memory takes for floats; it is said.
TEST(Prices, RatesThatWereNotMeasuredAreStoodInForAndNamed) {
  MachineProfile machine = machine_of_rates();
  machine.update_rates.erase("bf16");
  machine.update_rates.erase("q8");
  const UpdateRates bf16 = update_rates(machine, bf16_format());
  EXPECT_EQ(bf16.update_params_per_s, 1e6);
  const UpdateRates q8 = update_rates(machine, q8_format());
  EXPECT_EQ(q8.update_params_per_s, 1e6);
  EXPECT_DOUBLE_EQ(1 / q8.update_decoded_params_per_s, 1 / 1e6 + 4 / 20e9);
  EXPECT_EQ(q8.decode_params_per_s, 1e6);
  EXPECT_TRUE(missing_update_rates(machine, StateFormat{}).empty());
  EXPECT_EQ(missing_update_rates(machine, bf16_format()).size(), 1U);
  EXPECT_EQ(missing_update_rates(machine, q8_format()).size(), 2U);
  PlanSettings settings = roomy();
  settings.format = q8_format();
  const ModelSpec model = make_model(256, 2, 3000, false, 1);
  const auto plan = make_plan(model, settings, machine);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->notes.size(), 2U);
  EXPECT_NE(plan->notes.front().find("as in \"fp32\""), std::string::npos);
  const std::string table = format_plan(*plan, model, settings);
  EXPECT_NE(table.find("state \"q8\": 1.0 M parameters/s; "), std::string::npos) << table;
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    const UpdateRates guessed = update_rates({}, format);
    EXPECT_GT(guessed.update_params_per_s, 0);
    EXPECT_GT(guessed.update_decoded_params_per_s, 0);
    EXPECT_GT(guessed.decode_params_per_s, 0);
  }
}

// Weights that are decoded cross the link to the device as floats, and are read from both extents.
TEST(Formats, DecodedWeightsAreReadFromBothExtents) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  PlanSettings settings = roomy();
  settings.separate_device = true;
  settings.place = Home::kNvme;
  const auto fp32 = make_plan(model, settings, {});
  settings.format = q8_format();
  const auto q8 = make_plan(model, settings, {});
  ASSERT_TRUE(fp32 && q8);
  EXPECT_EQ(bytes_over(*q8, "steady", "h2d"), bytes_over(*fp32, "steady", "h2d"));
  const auto extents = static_cast<double>(q8->nvme_bytes);
  EXPECT_GE(static_cast<double>(bytes_over(*q8, "evaluation", "nvme_read")), 0.1 * extents);
  for (const Program* program : {&q8->compute, &q8->compute_held, &q8->drain, &q8->evaluation}) {
    expect_ordered(*program);
  }
}

// With all state in host memory, the arena that one format needs is more than the next one can do
// with: floats are kept beside what they are decoded from only where there is room.
TEST(Plan, ItsTextIsAHundredColumnsWide) {
  for (const bool separate : {false, true}) {
    PlanSettings settings = roomy();
    settings.separate_device = separate;
    settings.place = Home::kNvme;
    settings.steps = 100000;
    settings.format = q8_format();
    const ModelSpec model = make_model(256, 6, 3000, false, 2);
    const auto plan = make_plan(model, settings, {});
    ASSERT_TRUE(plan);
    std::istringstream lines(format_plan(*plan, model, settings, 10'000'000'000));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 100U) << line;
    }
  }
}

TEST(Formats, FewerBytesNeedLessMemory) {
  const ModelSpec model = make_model(256, 6, 3000, false, 1);
  PlanSettings settings = roomy();
  settings.place = Home::kHost;
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    settings.format = format;
    const auto plan = make_plan(model, settings, {});
    ASSERT_TRUE(plan) << format.name;
    settings.host_memory_bytes = plan->host_arena_bytes - (std::size_t{1} << 20);
    if (format.decoded) {
      EXPECT_TRUE(std::any_of(plan->units.begin(), plan->units.end(), [](const UnitPlan& unit) {
        return !unit.pinned;
      }));
    }
  }
}

TEST(Formats, FrozenTilesAreFloatsWithoutState) {
  const TileSpec frozen{.begin = 0, .elements = 4 * kPageElements, .frozen = true};
  for (const StateFormat& format : {StateFormat{}, bf16_format(), q8_format()}) {
    EXPECT_EQ(format.param_extent_bytes(frozen), 16U * kPageElements);
    EXPECT_EQ(format.state_extent_bytes(frozen), 0U);
    EXPECT_FALSE(format.decodes(frozen));
  }
}

}  // namespace
}  // namespace headrace::plan
