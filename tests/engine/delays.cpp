// See delays.hpp.
#include "tests/engine/delays.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace headrace::testing {

namespace {

using tiers::nvme::BackendFacts;
using tiers::nvme::BackendOptions;
using tiers::nvme::BlockFile;
using tiers::nvme::IoBackend;
using tiers::nvme::IoCompletion;
using tiers::nvme::IoRequest;

constexpr std::int64_t kLongestNs = 5'000'000;  // of one delay, so that tests come to an end
constexpr std::int64_t kOperationNs = 50'000;   // what a kernel of these models takes, about
constexpr std::int64_t kNsPerKibibyteCopied = 300;

std::int64_t delay_ns(double factor, std::int64_t alone_ns) {
  return std::min(static_cast<std::int64_t>((factor - 1) * static_cast<double>(alone_ns)),
                  kLongestNs);
}

// Puts a pause on a queue where the dice say so.
void pause(Delays& delays, unsigned one_of, std::int64_t alone_ns, tiers::Queue& queue) {
  const double factor = delays.draw(one_of);
  if (factor > 0) {
    queue.submit({.name = "delay"}, [ns = delay_ns(factor, alone_ns)] {
      // tidy_test: a delay is what is made here, nothing waits for it to be over
      std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    });
  }
}

// Requests go through at once; completions are kept back until they are due.
class SlowBackend final : public IoBackend {
 public:
  SlowBackend(std::unique_ptr<IoBackend> inner, Delays& delays, unsigned one_of, unsigned depth)
      : inner_(std::move(inner)), delays_(delays), one_of_(one_of) {
    under_way_.reserve(depth);
    kept_.reserve(depth);
  }

  ~SlowBackend() override = default;

  void queue(IoRequest& request) override {
    if (delays_.next_request_fails()) {
      kept_.push_back({.completion = {.request = &request, .result = -EIO}, .due_ns = now_ns()});
      return;
    }
    under_way_.push_back({.request = &request, .begin_ns = now_ns()});
    inner_->queue(request);
  }

  [[nodiscard]] std::size_t wait(std::span<IoCompletion> completions,
                                 std::optional<std::int64_t> timeout_ns) override {
    std::int64_t next_ns = std::numeric_limits<std::int64_t>::max();
    for (const Kept& kept : kept_) {
      next_ns = std::min(next_ns, std::max<std::int64_t>(kept.due_ns - now_ns(), 0));
    }
    const bool bounded = timeout_ns.has_value() || !kept_.empty();
    const std::int64_t bound = std::min(timeout_ns.value_or(next_ns), next_ns);
    std::array<IoCompletion, 32> done{};
    const std::size_t count =
        inner_->wait(done, bounded ? std::optional(bound) : std::optional<std::int64_t>());
    for (std::size_t i = 0; i < count; ++i) {
      keep(done[i]);
    }
    return hand_over(completions);
  }

  void wake() override { inner_->wake(); }

  void cancel() override { inner_->cancel(); }

  [[nodiscard]] std::int64_t now_ns() const override { return inner_->now_ns(); }

  [[nodiscard]] BackendFacts facts() const override { return inner_->facts(); }

 private:
  struct UnderWay {
    IoRequest* request = nullptr;
    std::int64_t begin_ns = 0;
  };

  struct Kept {
    IoCompletion completion;
    std::int64_t due_ns = 0;
  };

  void keep(const IoCompletion& completion) {
    const auto begun = std::find_if(under_way_.begin(), under_way_.end(), [&](const UnderWay& one) {
      return one.request == completion.request;
    });
    const std::int64_t now = now_ns();
    const double factor = delays_.draw(one_of_);
    const std::int64_t late = factor > 0 ? delay_ns(factor, now - begun->begin_ns) : 0;
    under_way_.erase(begun);
    kept_.push_back({.completion = completion, .due_ns = now + late});
  }

  std::size_t hand_over(std::span<IoCompletion> completions) {
    std::size_t count = 0;
    const std::int64_t now = now_ns();
    for (std::size_t i = 0; i < kept_.size() && count < completions.size();) {
      if (kept_[i].due_ns > now) {
        ++i;
        continue;
      }
      completions[count++] = kept_[i].completion;
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return count;
  }

  std::unique_ptr<IoBackend> inner_;
  Delays& delays_;
  const unsigned one_of_;
  std::vector<UnderWay> under_way_;
  std::vector<Kept> kept_;
};

// The CPU's separate arena, some of whose copies begin late.
class SlowDevice final : public tiers::Device {
 public:
  SlowDevice(std::unique_ptr<tiers::Device> inner, Delays& delays, unsigned one_of)
      : inner_(std::move(inner)), delays_(delays), one_of_(one_of) {}

  [[nodiscard]] std::string name() const override { return inner_->name(); }

  [[nodiscard]] bool aliases_host() const override { return inner_->aliases_host(); }

  [[nodiscard]] tiers::Queue& compute() override { return inner_->compute(); }

  [[nodiscard]] tiers::Queue& h2d() override { return inner_->h2d(); }

  [[nodiscard]] tiers::Queue& d2h() override { return inner_->d2h(); }

  [[nodiscard]] Result<std::span<std::byte>> allocate(std::size_t bytes) override {
    return inner_->allocate(bytes);
  }

  [[nodiscard]] Status pin(std::span<std::byte> host) override { return inner_->pin(host); }

  [[nodiscard]] std::size_t pinned_bytes() const override { return inner_->pinned_bytes(); }

  void copy(tiers::Queue& link,
            const char* name,
            std::uint64_t id,
            void* target,
            const void* source,
            std::size_t bytes) override {
    pause(
        delays_, one_of_, static_cast<std::int64_t>(bytes / 1024 + 1) * kNsPerKibibyteCopied, link);
    inner_->copy(link, name, id, target, source, bytes);
  }

 private:
  std::unique_ptr<tiers::Device> inner_;
  Delays& delays_;
  const unsigned one_of_;
};

struct Dice {
  Delays& delays;
  unsigned one_of;

  void pause_before(const exec::Call& call) const {
    pause(delays, one_of, kOperationNs, call.queue);
  }
};

class SlowBlock final : public exec::Block {
 public:
  SlowBlock(std::unique_ptr<exec::Block> inner, Dice dice)
      : inner_(std::move(inner)), dice_(dice) {}

  void forward(const exec::Call& call,
               const float* weights,
               const float* input,
               float* output,
               std::span<std::byte> saved) override {
    dice_.pause_before(call);
    inner_->forward(call, weights, input, output, saved);
  }

  void backward(const exec::Call& call,
                const float* weights,
                const float* input,
                std::span<const std::byte> saved,
                float* gradient,
                float* weight_gradients,
                exec::GradientMode mode) override {
    dice_.pause_before(call);
    inner_->backward(call, weights, input, saved, gradient, weight_gradients, mode);
  }

 private:
  std::unique_ptr<exec::Block> inner_;
  Dice dice_;
};

// Host operations.
class SlowEmbedding final : public exec::Embedding {
 public:
  SlowEmbedding(std::unique_ptr<exec::Embedding> inner, Dice dice)
      : inner_(std::move(inner)), dice_(dice) {}

  void gather(const exec::Call& call,
              const float* tile,
              std::int64_t begin,
              std::int64_t elements,
              const std::int32_t* tokens,
              float* x,
              bool first) override {
    dice_.pause_before(call);
    inner_->gather(call, tile, begin, elements, tokens, x, first);
  }

  void scatter(const exec::Call& call,
               const float* gradient,
               const std::int32_t* tokens,
               const exec::RowSlots& slots,
               float* accumulators,
               bool first) override {
    dice_.pause_before(call);
    inner_->scatter(call, gradient, tokens, slots, accumulators, first);
  }

  void spread(const exec::Call& call,
              const float* accumulators,
              const exec::RowSlots& slots,
              std::int64_t begin,
              std::int64_t elements,
              const float* head,
              float* gradient) override {
    dice_.pause_before(call);
    inner_->spread(call, accumulators, slots, begin, elements, head, gradient);
  }

 private:
  std::unique_ptr<exec::Embedding> inner_;
  Dice dice_;
};

}  // namespace

bool Delays::next_request_fails() {
  return requests_++ >= failing_from_;
}

double Delays::draw(unsigned one_of) {
  const std::lock_guard guard(mutex_);
  if (one_of == 0 || random_() % one_of != 0) {
    return 0;
  }
  ++delayed_;
  constexpr double kLeast = 2, kMost = 20;
  return kLeast + (kMost - kLeast) * static_cast<double>(random_() >> 11U) * 0x1p-53;
}

void Delays::wrap_drive(RunOptions& options, unsigned one_of) {
  options.make_io_backend =
      [this, one_of](BlockFile& file,
                     const BackendOptions& backend) -> Result<std::unique_ptr<IoBackend>> {
    HEADRACE_ASSIGN(std::unique_ptr<IoBackend> inner,
                    tiers::nvme::make_system_backend(file, backend));
    return std::make_unique<SlowBackend>(std::move(inner), *this, one_of, backend.depth);
  };
}

void Delays::slow_drive(RunOptions& options, unsigned one_of) {
  wrap_drive(options, one_of);
}

void Delays::fail_requests_from(RunOptions& options, std::uint64_t number) {
  failing_from_ = number;
  wrap_drive(options, 0);
}

void Delays::slow_links(RunOptions& options, unsigned one_of) {
  options.make_device = [this, one_of, threads = options.compute_threads](
                            tiers::Runtime& runtime,
                            tiers::Cores& cores) -> Result<std::unique_ptr<tiers::Device>> {
    tiers::CpuDeviceOptions device;
    device.aliases_host = false;
    device.compute_threads = threads;
    device.cores = &cores;
    HEADRACE_ASSIGN(std::unique_ptr<tiers::Device> inner, tiers::make_cpu_device(runtime, device));
    return std::make_unique<SlowDevice>(std::move(inner), *this, one_of);
  };
}

void Delays::slow_kernels(RunOptions& options, unsigned one_of) {
  options.wrap_model = [dice = Dice{.delays = *this, .one_of = one_of}](exec::Model model) {
    model.embedding = std::make_unique<SlowEmbedding>(std::move(model.embedding), dice);
    for (std::unique_ptr<exec::Block>& block : model.blocks) {
      block = std::make_unique<SlowBlock>(std::move(block), dice);
    }
    return model;
  };
}

}  // namespace headrace::testing
