// How fast the CPU optimizer is, beside what the machine's memory allows.
//
// The yardstick is a stream of Adam's own shape: it reads four arrays and writes three of them in
// place, with next to no arithmetic. Everything is timed in one interleaved run, since a machine's
// bandwidth drifts; the median of the repetitions is printed, with the fastest and the slowest.
// Bytes are those that must move (reads and writes, without write-allocation: all writes are in
// place). Memory asks for huge pages. Threads: the optimizer's; the main one works with them.
//
//   optim_bench [threads] [million parameters] [repetitions]

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "optim_cpu/adamw.hpp"
#include "optim_cpu/gradient.hpp"
#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/targets.hpp"
#include "optim_cpu/threads.hpp"

namespace headrace::optim {

namespace {

struct Settings {
  int threads = 2;
  std::int64_t million_parameters = 100;
  int repetitions = 5;

  [[nodiscard]] std::int64_t elements() const { return million_parameters * 1'000'000; }
};

// Anonymous memory that asks for huge pages.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (ok()) {
      madvise(data_, bytes_, MADV_HUGEPAGE);  // a wish: refused where the system has none
    }
  }

  ~Pages() {
    if (ok()) {
      munmap(data_, bytes_);
    }
  }

  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  [[nodiscard]] bool ok() const { return data_ != MAP_FAILED; }

  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

// One tensor as large as asked for, its gradient in both dtypes.
struct Arrays {
  explicit Arrays(std::int64_t count)
      : elements(count),
        param(static_cast<std::size_t>(count) * 4),
        state(static_cast<std::size_t>(count) * 8),
        gradient(static_cast<std::size_t>(count) * 4),
        bf16_gradient(static_cast<std::size_t>(count) * 2),
        stats(static_cast<std::size_t>(count_blocks(count))),
        sums(static_cast<std::size_t>(count_blocks(count))) {}

  [[nodiscard]] bool ok() const {
    return param.ok() && state.ok() && gradient.ok() && bf16_gradient.ok();
  }

  [[nodiscard]] float* m() const { return state.as<float>(); }

  [[nodiscard]] float* v() const { return state.as<float>() + elements; }

  // Gradients are positive, so that the stream leaves v a valid second moment.
  void fill(Threads& threads) const {
    threads.parallel_for(count_blocks(elements), [this](std::int64_t block) {
      const std::int64_t begin = block * kBlockElements;
      const std::int64_t end = std::min(elements, begin + kBlockElements);
      for (std::int64_t i = begin; i < end; ++i) {
        const float g = 1e-3F * static_cast<float>(1 + (i * 7919) % 1021) / 1021.0F;
        param.as<float>()[i] = 0.02F;
        m()[i] = 0.0F;
        v()[i] = 0.0F;
        gradient.as<float>()[i] = g;
        bf16_gradient.as<std::uint16_t>()[i] = bf16_from_float(g);
      }
    });
  }

  std::int64_t elements;
  Pages param, state, gradient, bf16_gradient;
  std::vector<UpdateStats> stats;
  std::vector<double> sums;
};

struct Block {
  std::int64_t begin;
  std::int64_t end;
};

// The yardstick's loop, for the processor's widest vectors.
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void stream_block(float* __restrict param,
                  float* __restrict m,
                  float* __restrict v,
                  const float* __restrict gradient,
                  Block block) {
  for (std::int64_t i = block.begin; i < block.end; ++i) {
    const float g = gradient[i];
    param[i] = param[i] * 0.5F + g;
    m[i] = m[i] * 0.5F + g;
    v[i] = v[i] * 0.5F + g;
  }
}

void stream(const Arrays& arrays, Threads& threads) {
  threads.parallel_for(count_blocks(arrays.elements), [&arrays](std::int64_t index) {
    const std::int64_t begin = index * kBlockElements;
    stream_block(arrays.param.as<float>(),
                 arrays.m(),
                 arrays.v(),
                 arrays.gradient.as<float>(),
                 {.begin = begin, .end = std::min(arrays.elements, begin + kBlockElements)});
  });
}

void update(Arrays& arrays, Dtype gradient_dtype, Threads& threads) {
  const bool bf16 = gradient_dtype == Dtype::kBf16;
  const TileSegment segment{
      .elements = arrays.elements,
      .gradient = bf16 ? arrays.bf16_gradient.as<const void>() : arrays.gradient.as<const void>(),
      .gradient_dtype = gradient_dtype,
      .scalars = {.lr = 1e-4, .weight_decay = 0.1, .update_count = 10}};
  update_tile(*find_optimizer("adamw", "fp32"),
              {.param = arrays.param.as<std::byte>(),
               .state = arrays.state.as<std::byte>(),
               .tile_elements = arrays.elements,
               .segments = {&segment, 1}},
              arrays.stats,
              threads);
}

void collect(Arrays& arrays, GradientTarget kind, Threads& threads) {
  const GradientSpan span{
      .incoming = arrays.gradient.as<float>(),
      .target = kind == GradientTarget::kBf16 ? arrays.bf16_gradient.as<void>() : nullptr,
      .kind = kind,
      .elements = arrays.elements};
  static_cast<void>(collect_blocks(span, arrays.sums, threads));
}

struct Case {
  std::string name;
  double bytes_per_parameter = 0;
  std::function<void()> run;
  std::vector<double> seconds = {};  // one for each repetition
};

std::vector<Case> make_cases(Arrays& arrays, Threads& threads) {
  std::vector<Case> cases;
  cases.push_back({"stream of Adam's shape", 28, [&] { stream(arrays, threads); }});
  for (const std::string& target : available_targets()) {
    cases.push_back({"adamw fp32, fp32 gradient, " + target, 28, [&, target] {
                       const ForcedTarget forced(target);
                       update(arrays, Dtype::kF32, threads);
                     }});
  }
  cases.push_back({"adamw fp32, bf16 gradient, " + active_target(), 26, [&] {
                     update(arrays, Dtype::kBf16, threads);
                   }});
  cases.push_back(
      {"collect: norm of fp32", 4, [&] { collect(arrays, GradientTarget::kNone, threads); }});
  cases.push_back(
      {"collect: fp32 to bf16, norm", 6, [&] { collect(arrays, GradientTarget::kBf16, threads); }});
  return cases;
}

void measure(std::vector<Case>& cases, int repetitions) {
  using Clock = std::chrono::steady_clock;
  for (int repetition = -1; repetition < repetitions; ++repetition) {  // the first warms up
    for (Case& one : cases) {
      const Clock::time_point begin = Clock::now();
      one.run();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      if (repetition >= 0) {
        one.seconds.push_back(seconds);
      }
    }
  }
}

void print(std::vector<Case>& cases, const Settings& settings) {
  fmt::print("{} million parameters, {} threads, median of {}\n",
             settings.million_parameters,
             settings.threads,
             settings.repetitions);
  fmt::print("{:<36}{:>10}{:>16}{:>12}{:>8}{:>10}\n",
             "",
             "ms",
             "fastest-slowest",
             "Mparam/s",
             "GB/s",
             "of stream");
  double stream_bytes_per_s = 0;
  for (Case& one : cases) {
    std::sort(one.seconds.begin(), one.seconds.end());
    const double median = one.seconds[one.seconds.size() / 2];
    const auto elements = static_cast<double>(settings.elements());
    const double bytes_per_s = elements * one.bytes_per_parameter / median;
    stream_bytes_per_s = stream_bytes_per_s == 0 ? bytes_per_s : stream_bytes_per_s;
    fmt::print("{:<36}{:>10.2f}{:>16}{:>12.0f}{:>8.1f}{:>9.0f}%\n",
               one.name,
               median * 1e3,
               fmt::format("{:.2f}-{:.2f}", one.seconds.front() * 1e3, one.seconds.back() * 1e3),
               elements / median / 1e6,
               bytes_per_s / 1e9,
               100 * bytes_per_s / stream_bytes_per_s);
  }
}

// A positive number, or nothing.
template <class T>
std::optional<T> number(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value > 0 ? std::optional<T>(value) : std::nullopt;
}

std::optional<Settings> parse(std::span<char*> arguments) {
  Settings settings;
  if (arguments.size() > 4) {
    return std::nullopt;
  }
  if (arguments.size() > 1) {
    settings.threads = number<int>(arguments[1]).value_or(0);
  }
  if (arguments.size() > 2) {
    settings.million_parameters = number<std::int64_t>(arguments[2]).value_or(0);
  }
  if (arguments.size() > 3) {
    settings.repetitions = number<int>(arguments[3]).value_or(0);
  }
  const bool valid = settings.threads > 0 && settings.million_parameters > 0 &&
                     settings.million_parameters <= 1'000'000 && settings.repetitions > 0;
  return valid ? std::optional(settings) : std::nullopt;
}

ExitCode run(const Settings& settings) {
  const auto threads = Threads::create(settings.threads);
  if (!threads) {
    fmt::print(stderr, "{}\n", format_error(threads.error(), false));
    return threads.error().code;
  }
  Arrays arrays(settings.elements());
  if (!arrays.ok()) {
    fmt::print(stderr, "error: no memory for {} million parameters\n", settings.million_parameters);
    return ExitCode::kOperating;
  }
  arrays.fill(**threads);
  std::vector<Case> cases = make_cases(arrays, **threads);
  measure(cases, settings.repetitions);
  print(cases, settings);
  return ExitCode::kOk;
}

}  // namespace

}  // namespace headrace::optim

int main(int argc, char** argv) {
  const auto settings = headrace::optim::parse({argv, static_cast<std::size_t>(argc)});
  if (!settings) {
    fmt::print(stderr, "usage: optim_bench [threads] [million parameters] [repetitions]\n");
    return static_cast<int>(headrace::ExitCode::kUsage);
  }
  return static_cast<int>(headrace::optim::run(*settings));
}
