// The engine's thread: takes operations from the lanes, hands their parts to the back end as
// requests, earliest deadline first, looks at every completion, sums (io_engine.hpp).
//
// Invariant: at most io_depth requests and bytes_in_flight_max bytes are in flight, and as many
// again of what is wanted now while others are; a request is either free or with the back end. The
// thread sleeps in the back end only, in one place, and everything that it waits for ends that
// sleep: completions, wakes (Signals), and a timeout while a cap holds transfers back. It does not
// sleep while there is something to sum.
#include "tiers/nvme/io_engine.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <exception>
#include <future>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/assert.hpp"
#include "core/float_environment.hpp"
#include "core/log.hpp"
#include "core/quantity.hpp"
#include "tiers/nvme/data_file.hpp"
#include "tiers/nvme/format.hpp"
#include "tiers/nvme/io_lane.hpp"
#include "tiers/nvme/pacer.hpp"
#include "tiers/nvme/page_buffer.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr std::size_t kRequestBytesLimit = std::size_t{1} << 30U;
// 1 MiB, some 50 us: what completes meanwhile is answered together, which costs the drive less than
// a call for each.
constexpr int kBlocksToSumMax = 8;
constexpr int kRetriesMax = 64;  // of one request without progress
// After so many requests' bytes in the order of urgency, one request is of the lane that was passed
// longest, if it was passed by as many: so nothing starves, and urgency costs 1/17 at most.
constexpr std::uint64_t kPassedRequestsMax = 16;

std::int64_t thread_cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A part of a lane's transfer. Lives as long as the engine.
struct Request : IoRequest {
  Lane* lane = nullptr;
  Transfer::Part part;
  int retries = 0;
  bool wanted_now = false;  // its lane was, when it was handed over
};

// Requests with the back end, and their payload.
struct InFlight {
  int requests = 0;
  std::uint64_t bytes = 0;

  void add(std::uint64_t more) {
    ++requests;
    bytes += more;
  }

  void remove(std::uint64_t less) {
    --requests;
    bytes -= less;
  }
};

class Engine final : public IoEngine {
 public:
  Engine(Runtime& runtime,
         Store& store,
         std::uint32_t folder,
         const EngineOptions& options,
         PageBuffer headers,
         std::uint64_t sub_blocks_max);
  // What is left is driven to its end; memory that runs out on the way ends the process, as in the
  // engine's thread.
  ~Engine() override;  // NOLINT(bugprone-exception-escape)

  // Makes the back end, on the thread that it belongs to.
  [[nodiscard]] Status start();

  [[nodiscard]] IoLane& lane(int index) override;
  [[nodiscard]] IoTotals totals() const override;

  [[nodiscard]] const BackendFacts& facts() const override { return facts_; }

  [[nodiscard]] std::size_t memory_bytes() const override;
  void cancel(Error reason) override;
  [[nodiscard]] std::vector<QueueWait> describe_waits() const override;
  bool turn() override;

 private:
  struct Choice {
    Lane* lane = nullptr;
    // Without a lane: until a cap lets the next request through; 0: none does.
    std::int64_t delay_ns = 0;
  };

  // The engine's thread.
  [[nodiscard]] Status make_backend();
  bool iterate(bool may_sleep);
  bool advance(Lane& lane);
  void begin(Lane& lane);
  void begin_transfer(Lane& lane);
  void end_transfer(Lane& lane);
  void run_body(Lane& lane);
  void update_urgencies();
  [[nodiscard]] std::int64_t issue_requests();
  [[nodiscard]] Choice next_lane(std::int64_t now_ns);
  [[nodiscard]] bool has_room(std::uint64_t bytes, bool wanted_now) const;
  void issue(Lane& lane, std::int64_t now_ns);
  void submit(Request& request);
  std::size_t take_completions(std::optional<std::int64_t> timeout_ns);
  void complete(Request& request, int result);
  void moved(Request& request, std::uint64_t bytes);
  void retry(Request& request);
  void release(Request& request);
  [[nodiscard]] Lane* lane_to_sum();
  void sum_some(Lane& lane);
  void raise(const Lane& lane, Error error);
  void raise_transfer(const Lane& lane, Error error);
  void trace(const Lane& lane, std::string_view name, std::int64_t begin_ns, std::int64_t id) const;
  [[nodiscard]] bool stopped_transfer() const;
  [[nodiscard]] bool finished();
  [[nodiscard]] Pacer& pacer(const Lane& lane);

  [[nodiscard]] std::uint64_t passed_bytes_max() const {
    return kPassedRequestsMax * options_.request_bytes_max;
  }

  Runtime& runtime_;
  Store& store_;
  std::uint32_t folder_;
  EngineOptions options_;
  std::uint64_t bytes_in_flight_max_;
  PageBuffer headers_;
  Signals signals_;
  std::deque<Lane> lanes_;  // neither moves nor copies them
  std::vector<Request> requests_;
  std::vector<Request*> free_requests_;
  std::unique_ptr<IoBackend> backend_;
  BackendFacts facts_{};
  Pacer read_pacer_;
  Pacer write_pacer_;
  std::uint64_t begun_ = 0;  // transfers
  int blocks_to_sum_ = 1;    // at once
  InFlight in_flight_;
  InFlight wanted_now_in_flight_;   // a part of in_flight_
  std::uint64_t urgent_bytes_ = 0;  // handed over since the longest passed lane had its turn
  // Whether a fault was raised. Looked at once a turn, when the lanes have gone on: another queue
  // may raise one at any instant, and if a part of the turn relied on what a later part then left
  // undone because of the fault, nothing would end the sleep that follows.
  bool faulted_ = false;
  bool cancelled_ = false;
  bool ended_ = false;
  std::atomic<std::uint64_t> read_bytes_{0};
  std::atomic<std::uint64_t> write_bytes_{0};
  std::atomic<std::uint64_t> resubmitted_{0};
  std::atomic<std::int64_t> sum_ns_{0};
  std::thread thread_;
};

Engine::Engine(Runtime& runtime,
               Store& store,
               std::uint32_t folder,
               const EngineOptions& options,
               PageBuffer headers,
               std::uint64_t sub_blocks_max)
    : runtime_(runtime),
      store_(store),
      folder_(folder),
      options_(options),
      bytes_in_flight_max_(options.bytes_in_flight_max.value_or(
          static_cast<std::size_t>(options.io_depth) * options.request_bytes_max)),
      headers_(std::move(headers)),
      requests_(2 * static_cast<std::size_t>(options.io_depth)),
      read_pacer_(options.read_bytes_per_s),
      write_pacer_(options.write_bytes_per_s) {
  const auto lane_count = static_cast<std::size_t>(options.lanes);
  const std::size_t header_bytes = headers_.bytes().size() / lane_count;
  const std::string name = store.folder_count() > 1 ? fmt::format("nvme{}", folder) : "nvme";
  for (std::size_t i = 0; i < lane_count; ++i) {
    Lane& lane = lanes_.emplace_back(
        runtime_,
        fmt::format("{}.{}", name, i),
        Lane::Setup{.store = store_,
                    .folder = folder,
                    .signals = signals_,
                    .capacity = options.lane_capacity,
                    .header = headers_.bytes().subspan(i * header_bytes, header_bytes),
                    .sub_blocks_max = sub_blocks_max});
    if (runtime_.trace != nullptr) {
      lane.track = runtime_.trace->add_track(lane.name());
    }
  }
  free_requests_.reserve(requests_.size());
  for (Request& request : requests_) {
    free_requests_.push_back(&request);
  }
}

Status Engine::make_backend() {
  std::vector<std::span<std::byte>> buffers = {headers_.bytes()};
  buffers.insert(buffers.end(), options_.buffers.begin(), options_.buffers.end());
  HEADRACE_ASSIGN(backend_,
                  options_.make_backend(
                      store_.file(folder_),
                      {.depth = static_cast<unsigned>(requests_.size()), .buffers = buffers}));
  facts_ = backend_->facts();
  log_debug(fmt::format("nvme tier: '{}': {}, direct I/O {}, {} requests of {} in flight",
                        store_.data_path(folder_),
                        describe(facts_),
                        store_.file(folder_).direct_io() ? "on" : "off",
                        options_.io_depth,
                        format_bytes(options_.request_bytes_max)));
  if (facts_.registered_file && facts_.registered_bytes < facts_.buffer_bytes) {
    log_info(
        fmt::format("nvme tier: '{}': {} of {} of memory are registered with io_uring, the "
                    "rest is pinned for each request; to register more: `ulimit -l unlimited`",
                    store_.data_path(folder_),
                    format_bytes(facts_.registered_bytes),
                    format_bytes(facts_.buffer_bytes)));
  }
  const std::scoped_lock lock(signals_.mutex);
  signals_.backend = backend_.get();
  return {};
}

Status Engine::start() {
  if (options_.driven_by_caller) {
    return make_backend();
  }
  std::promise<Status> made;
  std::future<Status> result = made.get_future();
  const auto serve = [this, &made] {
    pthread_setname_np(pthread_self(), "hr-nvme");
    set_flush_to_zero();
    Status status = make_backend();
    const bool ready = status.has_value();
    made.set_value(std::move(status));
    while (ready && !ended_) {
      iterate(true);
    }
    backend_.reset();
  };
  try {
    thread_ = std::thread(serve);
  } catch (const std::system_error& error) {
    return operating_error("nvme tier: cannot start the engine's thread")
        .with_why(error.what())
        .with_hint("raise the limit of processes: `ulimit -u`, or the container's pids limit");
  }
  return result.get();
}

Engine::~Engine() {  // NOLINT(bugprone-exception-escape)
  {
    const std::scoped_lock lock(signals_.mutex);
    signals_.closing = true;
    if (signals_.backend != nullptr) {
      signals_.wake_engine();
    }
  }

  if (thread_.joinable()) {
    thread_.join();
  } else if (backend_ != nullptr) {
    while (!ended_) {
      iterate(true);
    }
  }
}

IoLane& Engine::lane(int index) {
  HEADRACE_ASSERT(index >= 0 && index < options_.lanes, "the engine has the lane");
  return lanes_[static_cast<std::size_t>(index)];
}

IoTotals Engine::totals() const {
  return IoTotals{.read_bytes = read_bytes_.load(std::memory_order_relaxed),
                  .write_bytes = write_bytes_.load(std::memory_order_relaxed),
                  .resubmitted = resubmitted_.load(std::memory_order_relaxed),
                  .sum_ns = sum_ns_.load(std::memory_order_relaxed)};
}

std::size_t Engine::memory_bytes() const {
  return headers_.bytes().size() + requests_.size() * sizeof(Request) +
         lanes_.size() * (sizeof(Lane) + options_.lane_capacity * sizeof(LaneEntry)) +
         facts_.memory_bytes;
}

void Engine::cancel(Error reason) {
  runtime_.fault.raise(std::move(reason));
  const std::scoped_lock lock(signals_.mutex);
  signals_.wake_engine();
}

std::vector<QueueWait> Engine::describe_waits() const {
  std::vector<QueueWait> waits;
  for (const Lane& lane : lanes_) {
    if (std::optional<QueueWait> wait = lane.describe_wait()) {
      waits.push_back(std::move(*wait));
    }
  }
  return waits;
}

bool Engine::turn() {
  HEADRACE_ASSERT(options_.driven_by_caller, "an engine with a thread drives itself");
  return iterate(false);
}

// Once around. False: nothing was done, and nothing is under way.
bool Engine::iterate(bool may_sleep) {
  {
    const std::scoped_lock lock(signals_.mutex);
    signals_.awake = false;  // whoever comes from now on wakes again
  }
  bool progress = false;
  for (Lane& lane : lanes_) {
    progress = advance(lane) || progress;
  }
  faulted_ = runtime_.fault.raised();
  if (faulted_ && !std::exchange(cancelled_, true)) {
    backend_->cancel();
  }
  const std::int64_t delay_ns = issue_requests();
  if (stopped_transfer()) {
    return true;
  }
  if (finished()) {
    ended_ = true;
    return progress;
  }
  Lane* const to_sum = lane_to_sum();
  std::optional<std::int64_t> timeout_ns;
  if (to_sum != nullptr) {
    timeout_ns = 0;
  } else if (delay_ns > 0) {
    timeout_ns = delay_ns;
  } else if (!may_sleep && free_requests_.size() == requests_.size()) {
    return progress;
  }
  if (take_completions(timeout_ns) > 0) {
    // That made room, which is filled before anything is summed. Where one completes, others
    // follow: until none comes the next look is not far.
    blocks_to_sum_ = 1;
  } else if (to_sum != nullptr) {
    sum_some(*to_sum);
    blocks_to_sum_ = std::min(2 * blocks_to_sum_, kBlocksToSumMax);
  }
  return true;
}

// A transfer that a fault has stopped with nothing in flight: no completion will tell of its end.
bool Engine::stopped_transfer() const {
  return faulted_ && std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
           return lane.phase == Lane::Phase::kTransferring && lane.transfer.in_flight == 0;
         });
}

// Nothing left to do, and nothing more can come.
bool Engine::finished() {
  for (Lane& lane : lanes_) {
    if (lane.phase != Lane::Phase::kIdle || !lane.empty()) {
      return false;
    }
  }
  const std::scoped_lock lock(signals_.mutex);
  return signals_.closing;
}

// Takes the lane as far as it goes without waiting for anything. True: it went on.
bool Engine::advance(Lane& lane) {
  for (bool progress = false;; progress = true) {
    if (lane.phase == Lane::Phase::kWaiting) {
      if (!lane.wait_over()) {
        return progress;
      }
      if (runtime_.trace != nullptr) {
        std::array<char, 64> name{};
        const auto end = fmt::format_to_n(
            name.data(), name.size(), "wait for {}", lane.current.event.queue()->name());
        trace(lane, {name.data(), std::min(end.size, name.size())}, lane.wait_begin_ns, -1);
      }
      lane.finish_current();
    } else if (lane.phase == Lane::Phase::kTransferring) {
      const bool over = lane.transfer.complete() || faulted_;
      if (!over || lane.transfer.in_flight > 0) {
        return progress;
      }
      end_transfer(lane);
    } else if (lane.take()) {
      begin(lane);
    } else {
      return progress;
    }
  }
}

void Engine::begin(Lane& lane) {
  switch (lane.current.kind) {
    case LaneEntry::Kind::kWait:
      if (lane.begin_wait(lane.current.event)) {
        lane.finish_current();
      } else {
        lane.phase = Lane::Phase::kWaiting;
        lane.wait_begin_ns = TraceRecorder::now_ns();
      }
      return;
    case LaneEntry::Kind::kBody:
      run_body(lane);
      lane.finish_current();
      return;
    case LaneEntry::Kind::kRead:
    case LaneEntry::Kind::kWrite:
      begin_transfer(lane);
      return;
  }
}

void Engine::run_body(Lane& lane) {
  if (runtime_.fault.raised()) {
    return;
  }
  Status status = [&]() -> Status {
    try {
      return lane.current.body();
    } catch (const std::exception& exception) {
      return operating_error(fmt::format("{}: failed", lane.current.name))
          .with_why(exception.what());
    }
  }();
  if (!status) {
    raise(lane, std::move(status).error());
  }
}

void Engine::begin_transfer(Lane& lane) {
  if (runtime_.fault.raised()) {
    lane.finish_current();
    return;
  }
  const LaneEntry& entry = lane.current;
  const bool write = entry.kind == LaneEntry::Kind::kWrite;
  lane.transfer.begin(
      store_,
      {.key = entry.key,
       .place = write ? store_.write_place(entry.key, entry.step) : store_.read_place(entry.key),
       .payload = entry.memory,
       .write = write,
       .step = entry.step,
       .sums = write || entry.check == ReadCheck::kHeaderAndSums,
       .chunk_bytes = options_.request_bytes_max});
  lane.transfer.number = ++begun_;
  lane.transfer.begin_ns = TraceRecorder::now_ns();
  lane.progress.offset.store(lane.transfer.place().offset, std::memory_order_relaxed);
  lane.progress.total_bytes.store(lane.transfer.total_bytes(), std::memory_order_relaxed);
  lane.progress.moved_bytes.store(0, std::memory_order_relaxed);
  lane.phase = Lane::Phase::kTransferring;
}

void Engine::end_transfer(Lane& lane) {
  const Transfer& transfer = lane.transfer;
  // A write that came to its end before the fault was raised is on the drive.
  if (transfer.is_write() && transfer.complete()) {
    store_.wrote(transfer.key(), transfer.place(), transfer.step());
  }
  trace(lane, lane.current.name, transfer.begin_ns, static_cast<std::int64_t>(lane.current.id));
  lane.finish_current();
}

void Engine::trace(const Lane& lane,
                   std::string_view name,
                   std::int64_t begin_ns,
                   std::int64_t id) const {
  if (runtime_.trace != nullptr) {
    runtime_.trace->record(TraceSpan{.name = name,
                                     .track = lane.track,
                                     .begin_ns = begin_ns,
                                     .end_ns = TraceRecorder::now_ns(),
                                     .id = id});
  }
}

// A lane is as urgent as its soonest operation, and as the lanes that stand still until it has
// finished one.
void Engine::update_urgencies() {
  {
    const std::scoped_lock lock(signals_.mutex);
    for (Lane& lane : lanes_) {
      lane.urgency = lane.deadline_locked();
    }
  }
  for (bool changed = true; std::exchange(changed, false);) {
    for (const Lane& waiting : lanes_) {
      if (waiting.phase != Lane::Phase::kWaiting) {
        continue;
      }
      for (Lane& lane : lanes_) {
        if (&lane == waiting.current.event.queue() && waiting.urgency < lane.urgency) {
          lane.urgency = waiting.urgency;
          changed = true;
        }
      }
    }
  }
}

Pacer& Engine::pacer(const Lane& lane) {
  return lane.transfer.is_write() ? write_pacer_ : read_pacer_;
}

// Hands over as many requests as may be in flight. Returns how long a cap holds the next one back
// (0: none does).
std::int64_t Engine::issue_requests() {
  if (free_requests_.empty() || faulted_) {
    return 0;
  }
  update_urgencies();
  while (!free_requests_.empty()) {
    const std::int64_t now_ns = backend_->now_ns();
    const Choice choice = next_lane(now_ns);
    if (choice.lane == nullptr) {
      return choice.delay_ns;
    }
    if (!has_room(choice.lane->transfer.next()->payload_bytes,
                  choice.lane->urgency == kWantedNow)) {
      return 0;  // a completion makes room
    }
    issue(*choice.lane, now_ns);
  }
  return 0;
}

// What is wanted now does not wait for a drive that is busy with the rest: it has bounds of its
// own.
bool Engine::has_room(std::uint64_t bytes, bool wanted_now) const {
  const auto within = [&](const InFlight& in_flight) {
    return in_flight.requests < options_.io_depth &&
           (in_flight.bytes == 0 || in_flight.bytes + bytes <= bytes_in_flight_max_);
  };
  return within(in_flight_) || (wanted_now && within(wanted_now_in_flight_));
}

// The most urgent lane that has a part to hand over; among equals the one that began first, so that
// one after the other comes to its end and none all at once. What nobody waits for gives way
// while something else is being transferred.
Engine::Choice Engine::next_lane(std::int64_t now_ns) {
  Choice choice;
  const bool others = std::any_of(lanes_.begin(), lanes_.end(), [&](Lane& lane) {
    return lane.phase == Lane::Phase::kTransferring && lane.urgency < kDeadlineOfWrites &&
           (lane.transfer.in_flight > 0 ||
            (lane.transfer.next() && pacer(lane).delay_ns(now_ns) <= 0));
  });
  Lane* longest_passed = nullptr;
  const auto sooner = [](const Lane& a, const Lane& b) {
    return std::pair(a.urgency, a.transfer.number) < std::pair(b.urgency, b.transfer.number);
  };
  for (Lane& lane : lanes_) {
    if (lane.phase != Lane::Phase::kTransferring || !lane.transfer.next()) {
      continue;
    }
    const std::int64_t delay_ns = pacer(lane).delay_ns(now_ns);
    if (delay_ns > 0) {
      choice.delay_ns = choice.delay_ns == 0 ? delay_ns : std::min(choice.delay_ns, delay_ns);
      continue;
    }
    const bool held_back = others && lane.urgency >= kDeadlineOfWrites;
    if (!held_back && (choice.lane == nullptr || sooner(lane, *choice.lane))) {
      choice.lane = &lane;
    }
    if (longest_passed == nullptr ||
        lane.transfer.passed_bytes > longest_passed->transfer.passed_bytes) {
      longest_passed = &lane;
    }
  }
  if (longest_passed != nullptr && urgent_bytes_ >= passed_bytes_max() &&
      longest_passed->transfer.passed_bytes >= passed_bytes_max() &&
      has_room(longest_passed->transfer.next()->payload_bytes, false)) {
    choice.lane = longest_passed;
  }
  return choice;
}

void Engine::issue(Lane& lane, std::int64_t now_ns) {
  Request& request = *free_requests_.back();
  free_requests_.pop_back();
  request.lane = &lane;
  request.part = *lane.transfer.next();
  request.retries = 0;
  request.wanted_now = lane.urgency == kWantedNow;
  const std::uint64_t bytes = request.part.payload_bytes;
  for (Lane& other : lanes_) {
    if (&other == &lane) {
      urgent_bytes_ = other.transfer.passed_bytes >= passed_bytes_max() ? 0 : urgent_bytes_ + bytes;
      other.transfer.passed_bytes = 0;
    } else if (other.phase == Lane::Phase::kTransferring && other.transfer.next()) {
      other.transfer.passed_bytes += bytes;
    }
  }
  lane.transfer.hand_over();
  ++lane.transfer.in_flight;
  lane.progress.in_flight.store(lane.transfer.in_flight, std::memory_order_relaxed);
  in_flight_.add(bytes);
  if (request.wanted_now) {
    wanted_now_in_flight_.add(bytes);
  }
  pacer(lane).start(now_ns, bytes);
  submit(request);
}

void Engine::submit(Request& request) {
  const Transfer& transfer = request.lane->transfer;
  request.write = transfer.is_write();
  request.offset = transfer.place().offset + request.part.begin;
  request.bytes = request.part.end - request.part.begin;
  request.piece_count = transfer.pieces(request.part, request.pieces);
  backend_->queue(request);
}

// Returns how many came.
std::size_t Engine::take_completions(std::optional<std::int64_t> timeout_ns) {
  std::array<IoCompletion, 64> completions;
  const std::size_t count = backend_->wait(completions, timeout_ns);
  for (const IoCompletion& completion : std::span(completions).first(count)) {
    complete(static_cast<Request&>(*completion.request), completion.result);
  }
  return count;
}

void Engine::complete(Request& request, int result) {
  Lane& lane = *request.lane;
  const char* operation = request.write ? "write" : "read";
  const std::string& path = store_.data_path(folder_);
  if (result < 0) {
    const bool again = result == -EINTR || result == -EAGAIN;
    if (again && request.retries < kRetriesMax) {
      retry(request);
      return;
    }
    if (result != -ECANCELED || !cancelled_) {
      raise_transfer(lane, transfer_error(operation, path, request.offset, -result));
    }
    release(request);
    return;
  }
  const auto bytes = static_cast<std::uint64_t>(result);
  HEADRACE_ASSERT(bytes <= request.bytes, "the system moves no more than it was asked");
  if (bytes == request.bytes) {
    moved(request, bytes);
    release(request);
    return;
  }
  // Direct I/O goes on at a page only. A part of a page again and again is the end of the file.
  const std::uint64_t pages = bytes / kPageBytes * kPageBytes;
  if (pages == 0 && (bytes == 0 || request.retries >= kRetriesMax)) {
    raise_transfer(
        lane,
        request.write
            ? operating_error(
                  fmt::format("nvme tier: cannot write '{}' at offset {}", path, request.offset))
                  .with_why(fmt::format("the system took {} bytes of {}", bytes, request.bytes))
            : truncated_error(path, request.offset));
    release(request);
    return;
  }
  moved(request, pages);
  retry(request);
}

// The first bytes of the request have been moved.
void Engine::moved(Request& request, std::uint64_t bytes) {
  Lane& lane = *request.lane;
  lane.transfer.moved(request.part.begin, request.part.begin + bytes);
  lane.progress.moved_bytes.store(lane.transfer.moved_bytes(), std::memory_order_relaxed);
  (request.write ? write_bytes_ : read_bytes_).fetch_add(bytes, std::memory_order_relaxed);
  request.part.begin += bytes;
  request.retries = bytes > 0 ? 0 : request.retries;
}

// Hands the rest of a request over again. After a fault nothing more is.
void Engine::retry(Request& request) {
  if (runtime_.fault.raised()) {  // also one that another completion of this turn raised
    release(request);
    return;
  }
  ++request.retries;
  resubmitted_.fetch_add(1, std::memory_order_relaxed);
  submit(request);
}

void Engine::release(Request& request) {
  Transfer& transfer = request.lane->transfer;
  --transfer.in_flight;
  request.lane->progress.in_flight.store(transfer.in_flight, std::memory_order_relaxed);
  in_flight_.remove(request.part.payload_bytes);
  if (request.wanted_now) {
    wanted_now_in_flight_.remove(request.part.payload_bytes);
  }
  request.lane = nullptr;
  free_requests_.push_back(&request);
}

// The most urgent lane that has something to sum.
Lane* Engine::lane_to_sum() {
  Lane* found = nullptr;
  if (faulted_) {
    return found;
  }
  for (Lane& lane : lanes_) {
    if (lane.phase == Lane::Phase::kTransferring && lane.transfer.sums_pending() &&
        (found == nullptr || lane.urgency < found->urgency)) {
      found = &lane;
    }
  }
  return found;
}

void Engine::sum_some(Lane& lane) {
  const std::int64_t begin_ns = thread_cpu_ns();
  if (Status status = lane.transfer.sum_some(store_, blocks_to_sum_); !status) {
    raise(lane, std::move(status).error());
  }
  sum_ns_.fetch_add(thread_cpu_ns() - begin_ns, std::memory_order_relaxed);
}

void Engine::raise_transfer(const Lane& lane, Error error) {
  error.why += ", in " + store_.describe(lane.transfer.key(), lane.transfer.place());
  raise(lane, std::move(error));
}

void Engine::raise(const Lane& lane, Error error) {
  error.trace.push_back(
      fmt::format("'{}' (#{} on {})", lane.current.name, lane.current.id, lane.name()));
  runtime_.fault.raise(std::move(error));
}

}  // namespace

Result<std::unique_ptr<IoEngine>> IoEngine::create(Runtime& runtime,
                                                   Store& store,
                                                   std::uint32_t folder,
                                                   const EngineOptions& options) {
  HEADRACE_ASSERT(options.lanes > 0 && options.io_depth > 0, "an engine has lanes and requests");
  HEADRACE_ASSERT(options.request_bytes_max >= kPageBytes &&
                      options.request_bytes_max % kPageBytes == 0 &&
                      options.request_bytes_max <= kRequestBytesLimit,
                  "requests are of whole pages, at most 1 GiB");
  HEADRACE_ASSERT(folder < store.folder_count(), "the store has the folder");
  const std::uint64_t payload_bytes = store.payload_bytes_max();
  const std::size_t header_bytes = format::header_bytes(payload_bytes);
  HEADRACE_ASSIGN(PageBuffer headers,
                  PageBuffer::create(header_bytes * static_cast<std::size_t>(options.lanes)));
  auto engine = std::make_unique<Engine>(
      runtime, store, folder, options, std::move(headers), format::sum_count(payload_bytes));
  HEADRACE_TRY(engine->start());
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace headrace::tiers::nvme
