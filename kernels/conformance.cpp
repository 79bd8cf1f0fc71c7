// The harness of the conformance suite, and the CPU's instruction sets as backends.

#include "kernels/conformance.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>

#include "kernels/cpu/instruction_set.hpp"

namespace headrace::kernels::conformance {

namespace {

constexpr std::size_t kGuardBytes = 256;
constexpr std::byte kGuard{0xa5};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(std::string instruction_set) : instruction_set_(std::move(instruction_set)) {}

  [[nodiscard]] std::string name() const override { return "Cpu" + instruction_set_; }

  void activate() override { cpu::use_instruction_set(instruction_set_); }

  [[nodiscard]] std::byte* allocate(std::size_t bytes) override {
    return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
  }

  void release(std::byte* memory) override { ::operator delete (memory, std::align_val_t{64}); }

  void upload(std::byte* target, const std::byte* source, std::size_t bytes) override {
    if (bytes > 0) {
      std::memcpy(target, source, bytes);
    }
  }

  void download(std::byte* target, const std::byte* source, std::size_t bytes) override {
    upload(target, source, bytes);
  }

 private:
  std::string instruction_set_;
};

std::uint64_t seed() {
  static const std::uint64_t value = [] {
    const char* text = std::getenv("HEADRACE_SEED");
    const std::uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 10) : 20240607;
    testing::Test::RecordProperty("seed", std::to_string(chosen));
    static_cast<void>(
        std::fprintf(stderr, "HEADRACE_SEED=%llu\n", static_cast<unsigned long long>(chosen)));
    return chosen;
  }();
  return value;
}

bool operator==(const tiers::MemorySpan& a, const tiers::MemorySpan& b) {
  return a.begin == b.begin && a.bytes == b.bytes;
}

bool contains(const tiers::MemorySpan& outer, const tiers::MemorySpan& inner) {
  return inner.begin >= outer.begin && inner.begin + inner.bytes <= outer.begin + outer.bytes;
}

std::string text_of(const std::vector<tiers::MemorySpan>& spans) {
  std::string text;
  for (const tiers::MemorySpan& span : spans) {
    text += " [" + std::to_string(span.begin) + ", +" + std::to_string(span.bytes) + ")";
  }
  return text;
}

}  // namespace

const std::vector<Backend*>& backends() {
  static const std::vector<std::unique_ptr<Backend>> owned = [] {
    std::vector<std::unique_ptr<Backend>> list;
    list.reserve(cpu::instruction_sets().size());
    for (const std::string& name : cpu::instruction_sets()) {
      list.push_back(std::make_unique<CpuBackend>(name));
    }
    return list;
  }();
  static const std::vector<Backend*> pointers = [] {
    std::vector<Backend*> list;
    list.reserve(owned.size());
    for (const std::unique_ptr<Backend>& backend : owned) {
      list.push_back(backend.get());
    }
    return list;
  }();
  return pointers;
}

std::string backend_name(const testing::TestParamInfo<Backend*>& info) {
  return info.param->name();
}

Random::Random(std::uint64_t stream) : engine_(seed() * 1000003 + stream) {}

std::vector<float> Random::normal(std::int64_t count, double scale) {
  std::normal_distribution<double> distribution(0.0, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(distribution(engine_));
  }
  return values;
}

std::vector<std::int32_t> Random::integers(std::int64_t count,
                                           std::int32_t low,
                                           std::int32_t high) {
  std::uniform_int_distribution<std::int32_t> distribution(low, high);
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::int32_t& value : values) {
    value = distribution(engine_);
  }
  return values;
}

void RecordingQueue::push(const tiers::Operation& operation, tiers::Body body) {
  declared_.push_back({operation.name,
                       {operation.reads.begin(), operation.reads.end()},
                       {operation.writes.begin(), operation.writes.end()}});
  const std::uint64_t ticket = next_ticket();
  const Status status = body();
  EXPECT_TRUE(status.has_value()) << (status ? "" : format_error(status.error(), true));
  finish(ticket);
}

void RecordingQueue::push_wait(const tiers::Event& event) {
  ADD_FAILURE() << "a kernel waits for nothing";
  const std::uint64_t ticket = next_ticket();
  static_cast<void>(event);
  finish(ticket);
}

Case::~Case() {
  for (const Block& block : blocks_) {
    backend_.release(block.memory);
  }
}

std::size_t Case::add(std::vector<std::byte> contents,
                      std::size_t element_bytes,
                      std::int64_t offset,
                      bool output) {
  Block block;
  block.begin = kGuardBytes + static_cast<std::size_t>(offset) * element_bytes;
  block.bytes = block.begin + contents.size() + kGuardBytes;
  block.memory = backend_.allocate(block.bytes);
  block.initial = std::move(contents);
  block.output = output;
  reset(block);
  blocks_.push_back(std::move(block));
  return blocks_.size() - 1;
}

void Case::reset(const Block& block) {
  std::vector<std::byte> image(block.bytes, kGuard);
  std::copy(block.initial.begin(),
            block.initial.end(),
            image.begin() + static_cast<std::ptrdiff_t>(block.begin));
  backend_.upload(block.memory, image.data(), image.size());
}

void Case::check_block(const Block& block) const {
  std::vector<std::byte> image(block.bytes);
  backend_.download(image.data(), block.memory, image.size());
  const auto begin = image.begin() + static_cast<std::ptrdiff_t>(block.begin);
  const auto end = begin + static_cast<std::ptrdiff_t>(block.initial.size());
  const auto is_guard = [](std::byte value) { return value == kGuard; };
  EXPECT_TRUE(std::all_of(image.begin(), begin, is_guard)) << "written before an array";
  EXPECT_TRUE(std::all_of(end, image.end(), is_guard)) << "written behind an array";
  if (!block.output) {
    EXPECT_TRUE(std::equal(begin, end, block.initial.begin())) << "an input was changed";
  }
}

void Case::check_spans(const std::vector<tiers::MemorySpan>& spans,
                       bool outputs,
                       const tiers::MemorySpan& workspace) const {
  std::vector<tiers::MemorySpan> expected;
  for (const Block& block : blocks_) {
    if (block.output == outputs && !block.initial.empty()) {
      expected.emplace_back(block.memory + block.begin, block.initial.size());
    }
  }
  // A kernel may need less than the function says, which covers each variant of its arguments.
  std::vector<tiers::MemorySpan> got;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(got), [&](const auto& span) {
    return workspace.bytes == 0 || span.begin != workspace.begin || !contains(workspace, span);
  });
  const auto before = [](const tiers::MemorySpan& a, const tiers::MemorySpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  };
  if (!exact_spans_) {
    for (const tiers::MemorySpan& span : got) {
      EXPECT_TRUE(std::any_of(expected.begin(),
                              expected.end(),
                              [&](const auto& array) { return contains(array, span); }))
          << "a declared span lies in no array:" << text_of({span});
    }
    return;
  }
  std::sort(got.begin(), got.end(), before);
  std::sort(expected.begin(), expected.end(), before);
  EXPECT_TRUE(std::equal(got.begin(),
                         got.end(),
                         expected.begin(),
                         expected.end(),
                         [](auto& a, auto& b) { return a == b; }))
      << (outputs ? "writes" : "reads") << " declared:" << text_of(got)
      << "\nmust be:" << text_of(expected);
}

void Case::run(std::size_t workspace_bytes,
               int threads,
               const std::function<void(const Context&)>& kernel) {
  for (const Block& block : blocks_) {
    reset(block);
  }
  Block workspace;
  workspace.begin = kGuardBytes;
  workspace.bytes = 2 * kGuardBytes + workspace_bytes;
  workspace.initial.assign(workspace_bytes, std::byte{0xff});
  workspace.output = true;
  workspace.memory = backend_.allocate(workspace.bytes);
  reset(workspace);

  tiers::Runtime runtime;
  RecordingQueue queue(runtime);
  std::byte* memory = workspace_bytes > 0 ? workspace.memory + workspace.begin : nullptr;
  kernel({.queue = queue, .workspace = {memory, workspace_bytes}, .threads = threads, .id = 7});
  ASSERT_EQ(queue.declared().size(), 1U) << "a kernel is one operation";
  const Declared& declared = queue.declared().front();
  SCOPED_TRACE(declared.name + ", " + std::to_string(threads) + " threads");
  const tiers::MemorySpan workspace_span(memory, workspace_bytes);
  check_spans(declared.reads, false, {});
  check_spans(declared.writes, true, workspace_span);
  for (const Block& block : blocks_) {
    check_block(block);
  }
  check_block(workspace);
  backend_.release(workspace.memory);
}

std::vector<std::byte> Case::download(std::size_t index) const {
  const Block& block = blocks_[index];
  std::vector<std::byte> contents(block.initial.size());
  backend_.download(contents.data(), block.memory + block.begin, contents.size());
  return contents;
}

void expect_close(const std::vector<float>& got,
                  const std::vector<double>& expected,
                  double tolerance,
                  const char* what,
                  double floor) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = floor;
  for (const double value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  double worst = -1.0;
  std::size_t worst_at = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    ASSERT_FALSE(std::isnan(difference)) << what << "[" << i << "] is " << got[i];
    if (difference > worst) {
      worst = difference;
      worst_at = i;
    }
  }
  if (!got.empty()) {
    EXPECT_LE(worst, tolerance * largest)
        << what << "[" << worst_at << "] is " << got[worst_at] << ", not " << expected[worst_at];
  }
}

std::vector<double> widen(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

std::vector<float> sum_of(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum(a.size());
  std::transform(a.begin(), a.end(), b.begin(), sum.begin(), std::plus<>());
  return sum;
}

}  // namespace headrace::kernels::conformance
