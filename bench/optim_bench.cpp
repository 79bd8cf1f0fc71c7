// How fast the CPU optimizer is, beside what the machine's memory allows.
//
// The yardstick is a stream of Adam's own shape: it reads four arrays and writes three of them in
// place, with next to no arithmetic. Everything is timed in one interleaved run, since a machine's
// bandwidth drifts; the median of the repetitions is printed, with the fastest and the slowest.
// Bytes are those that must move (reads and writes, without write-allocation: all writes but those
// of decoding are in place). Memory asks for huge pages. Threads: the optimizer's; the main one
// works with them.
//
//   optim_bench [threads] [million parameters] [repetitions] [only] [json]
//
// `only` keeps the cases whose name has this text, or with a leading `=` the one of this name; the
// stream always runs. `json` prints a line a case with all its times, for bench/optim_peers.py.

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "optim_cpu/convert.hpp"
#include "optim_cpu/gradient.hpp"
#include "optim_cpu/optimizers.hpp"
#include "optim_cpu/targets.hpp"
#include "optim_cpu/threads.hpp"

namespace headrace::optim {

namespace {

constexpr std::int64_t kMillion = 1'000'000;

struct Settings {
  int threads = 2;
  std::int64_t million_parameters = 100;
  int repetitions = 5;
  std::string_view only = {};
  bool json = false;

  [[nodiscard]] std::int64_t elements() const { return million_parameters * kMillion; }

  [[nodiscard]] bool wants(std::string_view name) const {
    return only.starts_with('=') ? name == only.substr(1) : name.find(only) != name.npos;
  }
};

// Anonymous memory that asks for huge pages. Aborts where there is none: a benchmark's end.
class Pages {
 public:
  explicit Pages(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) {
      fmt::print(stderr, "error: no memory for {} bytes\n", bytes);
      std::abort();
    }
    madvise(data_, bytes_, MADV_HUGEPAGE);  // a wish: refused where the system has none
  }

  ~Pages() {
    if (data_ != nullptr) {
      munmap(data_, bytes_);
    }
  }

  Pages(Pages&& other) noexcept
      : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}

  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  Pages& operator=(Pages&&) = delete;

  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_;
};

// What a case needs, made when the first one asks for it.
class Memory {
 public:
  Memory(std::int64_t elements, Threads& threads) : elements_(elements), threads_(threads) {}

  [[nodiscard]] std::int64_t elements() const { return elements_; }

  // Positive ones, so that the stream leaves a valid second moment.
  template <class T>
  T* gradient() {
    auto& pages = sizeof(T) == 2 ? bf16_gradient_ : gradient_;
    if (!pages) {
      pages = std::make_unique<Pages>(elements_ * static_cast<std::int64_t>(sizeof(T)));
      fill(pages->as<T>(), elements_, [](std::int64_t i) {
        const float g = 1e-3F * static_cast<float>(1 + (i * 7919) % 1021) / 1021.0F;
        if constexpr (sizeof(T) == 2) {
          return bf16_from_float(g);
        } else {
          return g;
        }
      });
    }
    return pages->as<T>();
  }

  const float* zero_gradient() {
    if (!zero_gradient_) {
      zero_gradient_ = std::make_unique<Pages>(elements_ * 4);
      // Written, since untouched pages would all be the kernel's one page of zeros.
      fill(zero_gradient_->as<float>(), elements_, [](std::int64_t) { return 0.0F; });
    }
    return zero_gradient_->as<float>();
  }

  struct Tile {
    std::byte* param;
    std::byte* state;
  };

  // Weights of 0.02 and zero moments.
  Tile tile(const Optimizer& optimizer) {
    auto& pages = tiles_[&optimizer];
    if (!pages.first) {
      pages.first = std::make_unique<Pages>(elements_ * optimizer.param_element_bytes());
      pages.second = std::make_unique<Pages>(optimizer.state_bytes(elements_));
      fill(pages.second->as<std::byte>(), optimizer.state_bytes(elements_), [](std::int64_t) {
        return std::byte{0};
      });
      if (optimizer.param_dtype == Dtype::kF32) {
        fill(pages.first->as<float>(), elements_, [](std::int64_t) { return 0.02F; });
      } else {
        const std::uint16_t weight = bf16_from_float(0.02F);
        fill(pages.first->as<std::uint16_t>(), elements_, [=](std::int64_t) { return weight; });
      }
    }
    return {pages.first->as<std::byte>(), pages.second->as<std::byte>()};
  }

  template <class T, class ValueAt>
  void fill(T* target, std::int64_t count, const ValueAt& value_at) {
    threads_.parallel_for(count_blocks(count), [=](std::int64_t block) {
      const std::int64_t begin = block * kBlockElements;
      for (std::int64_t i = begin; i < std::min(count, begin + kBlockElements); ++i) {
        target[i] = value_at(i);
      }
    });
  }

 private:
  std::int64_t elements_;
  Threads& threads_;
  std::unique_ptr<Pages> gradient_, bf16_gradient_, zero_gradient_;
  std::map<const Optimizer*, std::pair<std::unique_ptr<Pages>, std::unique_ptr<Pages>>> tiles_;
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

// On arrays of its own, of 100 million elements at most.
class Stream {
 public:
  Stream(std::int64_t elements, Threads& threads)
      : elements_(std::min(elements, 100 * kMillion)), threads_(threads), pages_(elements_ * 16) {
    std::fill_n(pages_.as<float>(), elements_ * 4, 1.0F);
  }

  [[nodiscard]] std::int64_t elements() const { return elements_; }

  void run() const {
    threads_.parallel_for(count_blocks(elements_), [this](std::int64_t index) {
      const std::int64_t begin = index * kBlockElements;
      auto* data = pages_.as<float>();
      stream_block(data,
                   data + elements_,
                   data + 2 * elements_,
                   data + 3 * elements_,
                   {.begin = begin, .end = std::min(elements_, begin + kBlockElements)});
    });
  }

 private:
  std::int64_t elements_;
  Threads& threads_;
  Pages pages_;
};

struct Case {
  std::string name;
  std::int64_t elements = 0;
  double bytes_per_parameter = 0;
  std::function<void()> run;
  std::function<void()> prepare = {};  // before each run, not timed; may be empty
  std::vector<double> seconds = {};    // one for each repetition
};

// The update of all elements as `tensors` tensors of the same size.
struct Update {
  const Optimizer& optimizer;
  Dtype gradient_dtype = Dtype::kF32;
  std::int64_t tensors = 1;
  std::int64_t elements = 0;
  float* decoded = nullptr;
  bool zero_gradient = false;  // fp32
};

class Updater {
 public:
  Updater(const Update& update, Memory& memory)
      : optimizer_(update.optimizer), tile_elements_(memory.elements()), decoded_(update.decoded) {
    const Memory::Tile tile = memory.tile(optimizer_);
    param_ = tile.param;
    state_ = tile.state;
    const std::int64_t each = update.elements / update.tensors;
    const std::int64_t stride = (each + 63) / 64 * 64;
    const bool bf16 = update.gradient_dtype == Dtype::kBf16;
    const float* fp32_gradient = nullptr;
    if (!bf16) {
      fp32_gradient = update.zero_gradient ? memory.zero_gradient() : memory.gradient<float>();
    }
    const auto* gradient =
        bf16 ? reinterpret_cast<const std::byte*>(memory.gradient<std::uint16_t>())
             : reinterpret_cast<const std::byte*>(fp32_gradient);
    for (std::int64_t i = 0; i < update.tensors; ++i) {
      segments_.push_back(
          {.offset_elements = i * stride,
           .elements = each,
           .gradient =
               gradient + static_cast<std::size_t>(i * stride) * dtype_bytes(update.gradient_dtype),
           .gradient_dtype = update.gradient_dtype,
           .scalars = {.lr = 1e-4, .beta2 = 0.999, .weight_decay = 0.1, .update_count = 10},
           .tensor = static_cast<std::uint32_t>(i)});
    }
    stats_.resize(static_cast<std::size_t>(count_blocks(std::span(segments_))));
  }

  void run(Threads& threads, double scale = 1.0) {
    for (TileSegment& segment : segments_) {
      ++segment.scalars.update_count;
      segment.scalars.clip_scale = scale;
    }
    update_tile(optimizer_,
                {.param = param_,
                 .state = state_,
                 .tile_elements = tile_elements_,
                 .segments = segments_,
                 .decoded = decoded_},
                stats_,
                threads);
  }

 private:
  const Optimizer& optimizer_;
  std::byte* param_ = nullptr;
  std::byte* state_ = nullptr;
  std::int64_t tile_elements_ = 0;
  float* decoded_ = nullptr;
  std::vector<TileSegment> segments_;
  std::vector<UpdateStats> stats_;
};

// A small tile with memory of its own, for one thread.
class CachedTile {
 public:
  CachedTile(const Optimizer& optimizer, std::int64_t elements)
      : optimizer_(optimizer),
        elements_(elements),
        param_(elements * optimizer.param_element_bytes()),
        state_(optimizer.state_bytes(elements)),
        gradient_(elements * 2) {
    for (std::int64_t i = 0; i < elements; ++i) {
      gradient_.as<std::uint16_t>()[i] =
          bf16_from_float(1e-3F * static_cast<float>(1 + (i * 7919) % 1021) / 1021.0F);
    }
  }

  void update(std::int64_t rounds) {
    TileSegment segment{
        .elements = elements_,
        .gradient = gradient_.as<std::uint16_t>(),
        .gradient_dtype = Dtype::kBf16,
        .scalars = {.lr = 1e-4, .beta2 = 0.999, .weight_decay = 0.1, .update_count = 10}};
    UpdateStats stats;
    for (std::int64_t round = 0; round < rounds; ++round) {
      ++segment.scalars.update_count;
      optimizer_.update_blocks({.param = param_.as<std::byte>(),
                                .state = state_.as<std::byte>(),
                                .tile_elements = elements_,
                                .segments = {&segment, 1}},
                               {.begin = 0, .end = 1},
                               {&stats, 1});
    }
  }

 private:
  const Optimizer& optimizer_;
  std::int64_t elements_;
  Pages param_, state_, gradient_;
};

// Cases by name; those that the filter leaves out cost no memory.
class Cases {
 public:
  Cases(const Settings& settings, Threads& threads)
      : settings_(settings),
        threads_(threads),
        memory_(settings.elements(), threads),
        stream_(settings.elements(), threads) {
    cases_.reserve(64);
    Case& stream = cases_.emplace_back();
    stream.name = "stream of Adam's shape";
    stream.elements = stream_.elements();
    stream.bytes_per_parameter = 28;
    stream.run = [this] { stream_.run(); };
    add_formats();
    add_in_cache();
    add_instruction_sets();
    add_subnormals();
    add_small_tensors();
    add_collection();
    add_complete_update();
    add_decoding();
  }

  [[nodiscard]] std::vector<Case>& all() { return cases_; }

 private:
  // One case, if the filter has it; `make` returns its function.
  template <class Make>
  void add(const std::string& name, std::int64_t elements, double bytes, const Make& make) {
    if (settings_.wants(name)) {
      Case& one = cases_.emplace_back();
      one.name = name;
      one.elements = elements;
      one.bytes_per_parameter = bytes;
      one.run = make();
    }
  }

  std::function<void()> updating(const Update& update) {
    const auto updater = std::make_shared<Updater>(update, memory_);
    return [this, updater] { updater->run(threads_); };
  }

  static double bytes_of(const Optimizer& optimizer, Dtype gradient_dtype) {
    const std::int64_t kept =
        kMillion * optimizer.param_element_bytes() + optimizer.state_bytes(kMillion);
    return 2.0 * static_cast<double>(kept) / static_cast<double>(kMillion) +
           static_cast<double>(dtype_bytes(gradient_dtype));
  }

  void add_formats() {
    for (const Optimizer& optimizer : optimizers()) {
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
        add(fmt::format("adamw {}, {} param, {} gradient",
                        optimizer.state,
                        dtype_name(optimizer.param_dtype),
                        dtype_name(dtype)),
            settings_.elements(),
            bytes_of(optimizer, dtype),
            [&] {
              return updating({.optimizer = optimizer,
                               .gradient_dtype = dtype,
                               .elements = settings_.elements()});
            });
      }
    }
  }

  void add_instruction_sets() {
    for (const Optimizer& optimizer : optimizers()) {
      for (const std::string& target : available_targets()) {
        const bool other = target != active_target() && target != "scalar";
        if (!other || optimizer.param_dtype != Dtype::kBf16) {
          continue;
        }
        add(fmt::format("{}: adamw {}, bf16 param, bf16 gradient", target, optimizer.state),
            settings_.elements(),
            bytes_of(optimizer, Dtype::kBf16),
            [&]() -> std::function<void()> {
              const auto update = updating({.optimizer = optimizer,
                                            .gradient_dtype = Dtype::kBf16,
                                            .elements = settings_.elements()});
              return [target, update] {
                const ForcedTarget forced(target);
                update();
              };
            });
      }
    }
  }

  // Arithmetic alone: each thread updates a tile that its nearest caches hold, again and again.
  void add_in_cache() {
    constexpr std::int64_t kTile = 8192;
    for (const Optimizer& optimizer : optimizers()) {
      add(fmt::format("in cache: adamw {}, {} param, bf16 gradient",
                      optimizer.state,
                      dtype_name(optimizer.param_dtype)),
          settings_.elements(),
          bytes_of(optimizer, Dtype::kBf16),
          [&]() -> std::function<void()> {
            const auto tiles = std::make_shared<std::vector<CachedTile>>();
            for (int thread = 0; thread < threads_.count(); ++thread) {
              tiles->emplace_back(optimizer, kTile);
            }
            const std::int64_t rounds = settings_.elements() / (kTile * threads_.count());
            return [this, tiles, rounds] {
              threads_.parallel_for(threads_.count(), [&](std::int64_t thread) {
                (*tiles)[static_cast<std::size_t>(thread)].update(rounds);
              });
            };
          });
    }
  }

  // Moments that decayed away: subnormal before every update. The gradient is as usual, or zero, as
  // for rows of an embedding that no token has touched for long.
  void add_subnormals() {
    const Optimizer& optimizer = *find_optimizer("adamw", "fp32");
    for (const bool zero : {false, true}) {
      const std::string name =
          fmt::format("subnormal moments: adamw fp32, {}fp32 gradient", zero ? "zero " : "");
      add(name, settings_.elements(), bytes_of(optimizer, Dtype::kF32), [&] {
        return updating(
            {.optimizer = optimizer, .elements = settings_.elements(), .zero_gradient = zero});
      });
      if (cases_.back().name == name) {
        auto* moments = reinterpret_cast<float*>(memory_.tile(optimizer).state);
        cases_.back().prepare = [this, moments] {
          memory_.fill(moments, 2 * memory_.elements(), [](std::int64_t) { return 1e-41F; });
        };
      }
    }
  }

  void add_small_tensors() {
    constexpr std::int64_t kElements = 10 * kMillion;
    if (settings_.elements() < 11 * kMillion) {
      return;
    }
    for (const char* state : {"fp32", "bf16", "q8"}) {
      const Optimizer& optimizer = *find_optimizer("adamw", state, Dtype::kBf16);
      for (const std::int64_t tensors : {1, 10'000}) {
        add(fmt::format(
                "{} tensors, {} in all: adamw {}, bf16 gradient", tensors, kElements, state),
            kElements,
            bytes_of(optimizer, Dtype::kBf16),
            [&] {
              return updating({.optimizer = optimizer,
                               .gradient_dtype = Dtype::kBf16,
                               .tensors = tensors,
                               .elements = kElements});
            });
      }
    }
  }

  std::function<void()> collecting(const float* incoming, void* target, GradientTarget kind) {
    const auto sums = std::make_shared<std::vector<double>>(
        static_cast<std::size_t>(count_blocks(settings_.elements())));
    return [=, this] {
      static_cast<void>(collect_blocks(
          {.incoming = incoming, .target = target, .kind = kind, .elements = settings_.elements()},
          *sums,
          threads_));
    };
  }

  void add_collection() {
    add("collect: norm of fp32", settings_.elements(), 4, [&] {
      return collecting(memory_.gradient<float>(), nullptr, GradientTarget::kNone);
    });
    add("collect: fp32 to bf16, norm", settings_.elements(), 6, [&] {
      return collecting(
          memory_.gradient<float>(), memory_.gradient<std::uint16_t>(), GradientTarget::kBf16);
    });
  }

  // What a mixed-precision job asks of an optimizer whose gradient's norm is known: clip, update,
  // new bf16 weights. It is one pass: the factor is a constant of it.
  void add_complete_update() {
    for (const char* state : {"fp32", "bf16", "q8"}) {
      const Optimizer& optimizer = *find_optimizer("adamw", state, Dtype::kBf16);
      add(fmt::format("complete: clip, adamw {}, bf16 gradient and weights", state),
          settings_.elements(),
          bytes_of(optimizer, Dtype::kBf16),
          [&]() -> std::function<void()> {
            const auto updater = std::make_shared<Updater>(Update{.optimizer = optimizer,
                                                                  .gradient_dtype = Dtype::kBf16,
                                                                  .elements = settings_.elements()},
                                                           memory_);
            return [this, updater] { updater->run(threads_, clip_scale(2.0, 1.0)); };
          });
    }
  }

  // What a tile of "q8" costs that is used without an update, on a device that computes in fp32.
  void add_decoding() {
    const Optimizer& optimizer = *find_optimizer("adamw", "q8");
    add("decode q8 weights", settings_.elements(), 7, [&]() -> std::function<void()> {
      const Memory::Tile tile = memory_.tile(optimizer);
      const auto weights = std::make_shared<Pages>(settings_.elements() * 4);
      return [this, tile, weights, &optimizer] {
        read_weights(
            optimizer,
            {.param = tile.param, .state = tile.state, .tile_elements = settings_.elements()},
            weights->as<float>(),
            threads_);
      };
    });
  }

  const Settings& settings_;
  Threads& threads_;
  Memory memory_;
  Stream stream_;
  std::vector<Case> cases_;
};

void measure(std::vector<Case>& cases, int repetitions) {
  using Clock = std::chrono::steady_clock;
  for (int repetition = -1; repetition < repetitions; ++repetition) {  // the first warms up
    for (Case& one : cases) {
      if (one.prepare) {
        one.prepare();
      }
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
  fmt::print("{} million parameters, {} threads, {}, median of {}\n",
             settings.million_parameters,
             settings.threads,
             active_target(),
             settings.repetitions);
  fmt::print("{:<56}{:>9}{:>17}{:>10}{:>7}{:>7}{:>11}\n",
             "",
             "ms",
             "fastest-slowest",
             "Mparam/s",
             "B",
             "GB/s",
             "of stream");
  double stream_bytes_per_s = 0;
  for (Case& one : cases) {
    std::sort(one.seconds.begin(), one.seconds.end());
    const double median = one.seconds[one.seconds.size() / 2];
    const auto elements = static_cast<double>(one.elements);
    const double bytes_per_s = elements * one.bytes_per_parameter / median;
    stream_bytes_per_s = stream_bytes_per_s == 0 ? bytes_per_s : stream_bytes_per_s;
    fmt::print("{:<56}{:>9.2f}{:>17}{:>10.0f}{:>7.2f}{:>7.1f}{:>10.0f}%\n",
               one.name,
               median * 1e3,
               fmt::format("{:.2f}-{:.2f}", one.seconds.front() * 1e3, one.seconds.back() * 1e3),
               elements / median / 1e6,
               one.bytes_per_parameter,
               bytes_per_s / 1e9,
               100 * bytes_per_s / stream_bytes_per_s);
  }
}

void print_json(const std::vector<Case>& cases, const Settings& settings) {
  for (const Case& one : cases) {
    fmt::print(R"({{"name": "{}", "elements": {}, "bytes_per_parameter": {}, "threads": {}, )"
               R"("target": "{}", "seconds": [{:.9f}]}})"
               "\n",
               one.name,
               one.elements,
               one.bytes_per_parameter,
               settings.threads,
               active_target(),
               fmt::join(one.seconds, ", "));
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
  settings.json = arguments.size() == 6 && arguments[5] == std::string_view("json");
  if (arguments.size() > 6 || (arguments.size() == 6 && !settings.json)) {
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
  if (arguments.size() > 4) {
    settings.only = arguments[4];
  }
  const bool valid = settings.threads > 0 && settings.million_parameters > 0 &&
                     settings.million_parameters <= kMillion && settings.repetitions > 0;
  return valid ? std::optional(settings) : std::nullopt;
}

ExitCode run(const Settings& settings) {
  const auto threads = Threads::create(settings.threads);
  if (!threads) {
    fmt::print(stderr, "{}\n", format_error(threads.error(), false));
    return threads.error().code;
  }
  Cases cases(settings, **threads);
  measure(cases.all(), settings.repetitions);
  if (settings.json) {
    print_json(cases.all(), settings);
  } else {
    print(cases.all(), settings);
  }
  return ExitCode::kOk;
}

}  // namespace

}  // namespace headrace::optim

int main(int argc, char** argv) {
  const auto settings = headrace::optim::parse({argv, static_cast<std::size_t>(argc)});
  if (!settings) {
    fmt::print(stderr,
               "usage: optim_bench [threads] [million parameters] [repetitions] [only] [json]\n");
    return static_cast<int>(headrace::ExitCode::kUsage);
  }
  return static_cast<int>(headrace::optim::run(*settings));
}
