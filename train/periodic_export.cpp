#include "train/periodic_export.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "core/config.hpp"
#include "core/dtype.hpp"
#include "core/files.hpp"
#include "core/float_environment.hpp"
#include "core/interval.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "model/huggingface.hpp"
#include "model/spec.hpp"
#include "tiers/memory.hpp"
#include "train/export_list.hpp"
#include "train/export_run.hpp"
#include "train/interrupt.hpp"
#include "train/weights.hpp"

namespace headrace::train {
namespace {

using Clock = std::chrono::steady_clock;

Dtype dtype_of(const std::string& name) {
  return name == "bf16" ? Dtype::kBf16 : name == "f16" ? Dtype::kF16 : Dtype::kF32;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Exporter final : public PeriodicExport {
 public:
  struct Parts {
    const RunConfig& config;
    Interval every;
    ExportList list;
    std::unique_ptr<Weights> weights;
    plan::ModelSpec spec;
    std::unique_ptr<tiers::Arena> memory;
  };

  explicit Exporter(Parts parts)
      : settings_(parts.config.exports),
        every_(parts.every),
        list_(std::move(parts.list)),
        weights_(std::move(parts.weights)),
        spec_(std::move(parts.spec)),
        memory_(std::move(parts.memory)) {}

  ~Exporter() override { finish(); }

  [[nodiscard]] bool due(std::int64_t step) const override {
    if (list_.contains(step)) {
      return false;
    }
    return every_.steps > 0 ? step % every_.steps == 0
                            : seconds_since(last_start_) >= every_.seconds;
  }

  void start(std::int64_t step, std::optional<double> loss) override {
    finish();
    last_start_ = Clock::now();
    const auto work = [this, entry = ExportEntry{.step = step, .loss = loss}] {
      pthread_setname_np(pthread_self(), "hr-export");
      set_flush_to_zero();
      outcome_ = write(entry);
    };
    entry_step_ = step;
    try {
      thread_ = std::thread(work);
    } catch (const std::system_error& error) {
      // Without a thread of its own the export keeps the run waiting, which is no reason to drop
      // it.
      log_warning(
          fmt::format("export: no thread to be had ({}): the run waits for it", error.what()));
      work();
      note_outcome();
    }
  }

  void finish() override {
    if (thread_.joinable()) {
      thread_.join();
      note_outcome();
    }
  }

  [[nodiscard]] ExportCounts counts() const override { return counts_; }

 private:
  // The exporting thread, from here to the list's last change.
  Status write(const ExportEntry& entry) {
    const Clock::time_point begin = Clock::now();
    HEADRACE_TRY(make_directory(settings_.dir, Parents::kMustExist));
    HEADRACE_TRY(
        model::check_export_target(list_.folder(entry.step), model::ExportOver::kUnfinished));
    model::HuggingFaceExport target;
    target.dir = list_.folder(entry.step);
    target.dtype = dtype_of(settings_.dtype);
    target.buffer =
        std::span(reinterpret_cast<float*>(memory_->data()), kExportBufferBytes / sizeof(float));
    target.read = [&](int unit, std::int64_t from, std::span<float> out) -> Status {
      if (interrupt_requested()) {
        return make_error(ExitCode::kInterrupted, "interrupted");
      }
      return weights_->read(spec_, unit, from, out);
    };
    if (Status status = model::export_huggingface(weights_->architecture(), spec_, target);
        !status) {
      if (const Status removed = list_.remove_folder(entry.step); !removed) {
        log_warning(removed.error().what);
      }
      return status;
    }
    HEADRACE_TRY(list_.add(entry, settings_.keep, settings_.best));
    log_info(fmt::format("exported step {} to '{}' in {}",
                         entry.step,
                         target.dir,
                         format_duration(seconds_since(begin))));
    return {};
  }

  void note_outcome() {
    if (outcome_) {
      counts_.written += 1;
      return;
    }
    const Error& error = outcome_.error();
    if (error.code == ExitCode::kInterrupted) {
      log_info(fmt::format("the export of step {} was interrupted; a resume makes it again",
                           entry_step_));
      return;
    }
    counts_.failed += 1;
    log_error(fmt::format("the export of step {} failed, and the run goes on: {}{}{}",
                          entry_step_,
                          error.what,
                          error.why.empty() ? "" : ": " + error.why,
                          error.hint.empty() ? "" : " (" + error.hint + ")"));
  }

  ExportSection settings_;
  Interval every_;
  ExportList list_;
  std::unique_ptr<Weights> weights_;
  plan::ModelSpec spec_;
  std::unique_ptr<tiers::Arena> memory_;
  Clock::time_point last_start_ = Clock::now();
  std::int64_t entry_step_ = 0;
  std::thread thread_;
  Status outcome_;  // the thread's, read once it is joined
  ExportCounts counts_;
};

}  // namespace

std::size_t export_memory_bytes(std::size_t tile_bytes_max) {
  constexpr std::size_t kHeadersAndThread = std::size_t{1} << 20U;
  return kExportBufferBytes + tile_bytes_max + kHeadersAndThread;
}

Result<std::unique_ptr<PeriodicExport>> PeriodicExport::open(const RunConfig& config,
                                                             tiers::nvme::Store& store,
                                                             std::int64_t step) {
  HEADRACE_ASSIGN(const Interval every, parse_interval(config.exports.every));
  if (every.never()) {
    return std::unique_ptr<PeriodicExport>();
  }
  if (Status made = make_directory(config.exports.dir, Parents::kMustExist); !made) {
    Error error = std::move(made).error();
    error.where = config_place(config, "export.dir");
    return error;
  }
  HEADRACE_ASSIGN(ExportList list, ExportList::open(config.exports.dir, config.run.dir));
  HEADRACE_TRY(list.cut_back(step));
  HEADRACE_ASSIGN(std::unique_ptr<Weights> weights, weights_of_commit(store, config.run.dir));
  HEADRACE_ASSIGN(plan::ModelSpec spec,
                  model::make_model_spec(
                      weights->architecture(),
                      {.micro_batch = 1, .seq_len = 1, .accumulate = 1, .compute_threads = 1},
                      {}));
  HEADRACE_ASSIGN(std::unique_ptr<tiers::Arena> memory,
                  tiers::Arena::create(tiers::Tier::kHost, "export", kExportBufferBytes));
  return std::unique_ptr<PeriodicExport>(
      std::make_unique<Exporter>(Exporter::Parts{.config = config,
                                                 .every = every,
                                                 .list = std::move(list),
                                                 .weights = std::move(weights),
                                                 .spec = std::move(spec),
                                                 .memory = std::move(memory)}));
}

}  // namespace headrace::train
