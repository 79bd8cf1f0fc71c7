// The engine's thread: takes operations from the lanes, splits them into requests, gives these to
// the kernel in turn, looks at every completion (io_engine.hpp).
//
// Invariant: at most io_depth requests are in flight, each has one entry in the ring; a request is
// either free or given to the kernel. The thread sleeps in the kernel only, in one
// place (submit_and_sleep), and everything that it waits for comes as a completion: transfers, the
// eventfd that other threads write (Signals), and a timeout while a cap holds transfers back.
#include "tiers/nvme/io_engine.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <exception>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/assert.hpp"
#include "core/float_environment.hpp"
#include "tiers/nvme/data_file.hpp"
#include "tiers/nvme/format.hpp"
#include "tiers/nvme/io_lane.hpp"
#include "tiers/nvme/pacer.hpp"
#include "tiers/nvme/page_buffer.hpp"
#include "tiers/nvme/ring.hpp"

namespace headrace::tiers::nvme {
namespace {

constexpr std::size_t kRequestBytesLimit = std::size_t{1} << 30U;
constexpr int kRetriesMax = 64;            // of one request without progress
constexpr unsigned kSpareRingEntries = 2;  // the poll of the eventfd, and one to spare
constexpr std::int64_t kNsPerS = 1'000'000'000;
constexpr std::int64_t kStarvedSleepNs = 1'000'000;

// A part [begin, end) of a lane's transfer. Lives as long as the engine.
struct Request {
  Lane* lane = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  int retries = 0;
  std::array<iovec, 2> pieces{};  // of header and payload; must stay until the completion
};

class Engine final : public IoEngine {
 public:
  Engine(Runtime& runtime, Store& store, const EngineOptions& options, PageBuffer headers);
  ~Engine() override;

  // Starts the thread, which makes the ring.
  [[nodiscard]] Status start();

  [[nodiscard]] IoLane& lane(int index) override;
  [[nodiscard]] IoTotals totals() const override;

  [[nodiscard]] std::size_t memory_bytes() const override { return memory_bytes_; }

 private:
  struct Choice {
    Lane* lane = nullptr;
    std::int64_t delay_ns =
        0;  // without a lane: until a cap lets the next request through; 0: none
  };

  // The engine's thread.
  void serve();
  void advance(Lane& lane);
  void begin_transfer(Lane& lane);
  void end_transfer(Lane& lane);
  void run_body(Lane& lane);
  [[nodiscard]] std::int64_t issue_requests();
  [[nodiscard]] Choice next_lane(std::int64_t now_ns);
  void issue(Lane& lane, std::int64_t now_ns);
  void prepare(Request& request);
  void arm_wake();
  void submit_and_sleep(std::int64_t timeout_ns);
  void take_completions();
  void take_wake();
  void complete(Request& request, int result);
  void retry(Request& request, std::uint64_t progress);
  void release(Request& request);
  void raise(const Lane& lane, Error error);
  void trace(const Lane& lane, std::string_view name, std::int64_t begin_ns, std::int64_t id) const;
  [[nodiscard]] bool stopped_transfer() const;
  [[nodiscard]] bool finished();
  [[nodiscard]] std::uint64_t file_offset(const Request& request) const;

  Runtime& runtime_;
  Store& store_;
  EngineOptions options_;
  PageBuffer headers_;
  Signals signals_;
  std::deque<Lane> lanes_;  // neither moves nor copies them
  std::vector<Request> requests_;
  std::vector<Request*> free_requests_;
  std::unique_ptr<Ring> ring_;
  Pacer read_pacer_;
  Pacer write_pacer_;
  std::size_t turn_ = 0;  // the lane that is asked first
  bool wake_armed_ = false;
  std::size_t memory_bytes_ = 0;
  std::atomic<std::uint64_t> read_bytes_{0};
  std::atomic<std::uint64_t> write_bytes_{0};
  std::atomic<std::uint64_t> resubmitted_{0};
  std::thread thread_;
};

bool is_write(const Lane& lane) {
  return lane.current.kind == LaneEntry::Kind::kWrite;
}

Engine::Engine(Runtime& runtime, Store& store, const EngineOptions& options, PageBuffer headers)
    : runtime_(runtime),
      store_(store),
      options_(options),
      headers_(std::move(headers)),
      requests_(static_cast<std::size_t>(options.io_depth)),
      read_pacer_(options.read_bytes_per_s),
      write_pacer_(options.write_bytes_per_s) {
  const auto lane_count = static_cast<std::size_t>(options.lanes);
  const std::size_t header_bytes = headers_.bytes().size() / lane_count;
  for (std::size_t i = 0; i < lane_count; ++i) {
    Lane& lane = lanes_.emplace_back(
        runtime_,
        fmt::format("nvme.{}", i),
        Lane::Setup{.store = store_,
                    .signals = signals_,
                    .capacity = options.lane_capacity,
                    .header = headers_.bytes().subspan(i * header_bytes, header_bytes)});
    if (runtime_.trace != nullptr) {
      lane.track = runtime_.trace->add_track(lane.name());
    }
  }
  free_requests_.reserve(requests_.size());
  for (Request& request : requests_) {
    free_requests_.push_back(&request);
  }
}

Status Engine::start() {
  signals_.wake.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signals_.wake) {
    return errno_error("nvme tier: cannot make an eventfd", errno)
        .with_hint("raise the limit of open files: `ulimit -n`");
  }
  // The ring belongs to the thread that makes it (IORING_SETUP_SINGLE_ISSUER).
  std::promise<Status> made;
  std::future<Status> result = made.get_future();
  thread_ = std::thread([this, &made] {
    pthread_setname_np(pthread_self(), "hr-nvme");
    set_flush_to_zero();
    Result<std::unique_ptr<Ring>> ring =
        Ring::create(static_cast<unsigned>(options_.io_depth) + kSpareRingEntries);
    if (!ring) {
      made.set_value(std::move(ring).error());
      return;
    }
    ring_ = std::move(*ring);
    memory_bytes_ = headers_.bytes().size() + requests_.size() * sizeof(Request) +
                    lanes_.size() * options_.lane_capacity * sizeof(LaneEntry) +
                    ring_->memory_bytes();
    made.set_value({});
    serve();
    ring_.reset();
  });
  return result.get();
}

Engine::~Engine() {
  {
    const std::scoped_lock lock(signals_.mutex);
    signals_.closing = true;
    if (signals_.wake) {
      signals_.wake_engine();
    }
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

IoLane& Engine::lane(int index) {
  HEADRACE_ASSERT(index >= 0 && index < options_.lanes, "the engine has the lane");
  return lanes_[static_cast<std::size_t>(index)];
}

IoTotals Engine::totals() const {
  return IoTotals{.read_bytes = read_bytes_.load(std::memory_order_relaxed),
                  .write_bytes = write_bytes_.load(std::memory_order_relaxed),
                  .resubmitted = resubmitted_.load(std::memory_order_relaxed)};
}

void Engine::serve() {
  for (;;) {
    for (Lane& lane : lanes_) {
      advance(lane);
    }
    const std::int64_t delay_ns = issue_requests();
    if (stopped_transfer()) {
      continue;
    }
    if (finished()) {
      return;
    }
    submit_and_sleep(delay_ns);
    take_completions();
  }
}

// A transfer that a fault has stopped with nothing in flight: no completion will tell of its end.
bool Engine::stopped_transfer() const {
  return runtime_.fault.raised() && std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
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

// Takes the lane as far as it goes without waiting for anything.
void Engine::advance(Lane& lane) {
  for (;;) {
    if (lane.phase == Lane::Phase::kWaiting) {
      if (!lane.wait_over()) {
        return;
      }
      if (runtime_.trace != nullptr) {
        trace(lane,
              fmt::format("wait for {}", lane.current.event.queue()->name()),
              lane.wait_begin_ns,
              -1);
      }
      lane.finish_current();
    }
    if (lane.phase == Lane::Phase::kTransferring) {
      const Transfer& transfer = lane.transfer;
      const bool over = transfer.finished == transfer.total || runtime_.fault.raised();
      if (!over || transfer.in_flight > 0) {
        return;
      }
      end_transfer(lane);
    }
    if (!lane.take()) {
      return;
    }
    switch (lane.current.kind) {
      case LaneEntry::Kind::kWait:
        if (lane.begin_wait(lane.current.event)) {
          lane.finish_current();
        } else {
          lane.phase = Lane::Phase::kWaiting;
          lane.wait_begin_ns = TraceRecorder::now_ns();
        }
        break;
      case LaneEntry::Kind::kBody:
        run_body(lane);
        lane.finish_current();
        break;
      case LaneEntry::Kind::kRead:
      case LaneEntry::Kind::kWrite:
        begin_transfer(lane);
        break;
    }
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
  lane.transfer = Transfer{};
  lane.transfer.place =
      is_write(lane) ? store_.write_place(lane.current.key) : store_.read_place(lane.current.key);
  lane.transfer.total = lane.transfer.place.header_bytes + lane.transfer.place.payload_bytes;
  lane.transfer.begin_ns = TraceRecorder::now_ns();
  lane.phase = Lane::Phase::kTransferring;
  if (is_write(lane)) {
    store_.make_header(
        lane.current.key, lane.transfer.place, lane.payload(), lane.current.step, lane.header());
  }
}

void Engine::end_transfer(Lane& lane) {
  if (!runtime_.fault.raised()) {
    if (is_write(lane)) {
      store_.wrote(lane.current.key, lane.transfer.place, lane.current.step);
    } else if (Status status = store_.check(
                   lane.current.key, lane.transfer.place, lane.header(), lane.payload());
               !status) {
      raise(lane, std::move(status).error());
    }
  }
  trace(
      lane, lane.current.name, lane.transfer.begin_ns, static_cast<std::int64_t>(lane.current.id));
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

// Gives the kernel as many requests as may be in flight, lane after lane in turn. Returns how long
// a cap holds the next one back (0: none does).
std::int64_t Engine::issue_requests() {
  while (!free_requests_.empty() && !runtime_.fault.raised()) {
    const std::int64_t now_ns = TraceRecorder::now_ns();
    const Choice choice = next_lane(now_ns);
    if (choice.lane == nullptr) {
      return choice.delay_ns;
    }
    issue(*choice.lane, now_ns);
  }
  return 0;
}

Engine::Choice Engine::next_lane(std::int64_t now_ns) {
  Choice choice;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::size_t index = (turn_ + i) % lanes_.size();
    Lane& lane = lanes_[index];
    if (lane.phase != Lane::Phase::kTransferring || lane.transfer.issued == lane.transfer.total) {
      continue;
    }
    const std::int64_t delay_ns = (is_write(lane) ? write_pacer_ : read_pacer_).delay_ns(now_ns);
    if (delay_ns == 0) {
      turn_ = index + 1;
      return Choice{.lane = &lane, .delay_ns = 0};
    }
    choice.delay_ns = choice.delay_ns == 0 ? delay_ns : std::min(choice.delay_ns, delay_ns);
  }
  return choice;
}

void Engine::issue(Lane& lane, std::int64_t now_ns) {
  Transfer& transfer = lane.transfer;
  Request& request = *free_requests_.back();
  free_requests_.pop_back();
  const std::uint64_t bytes =
      std::min<std::uint64_t>(options_.request_bytes_max, transfer.total - transfer.issued);
  request.lane = &lane;
  request.begin = transfer.issued;
  request.end = transfer.issued + bytes;
  request.retries = 0;
  transfer.issued += bytes;
  ++transfer.in_flight;
  (is_write(lane) ? write_pacer_ : read_pacer_).start(now_ns, bytes);
  prepare(request);
}

std::uint64_t Engine::file_offset(const Request& request) const {
  return request.lane->transfer.place.offset + request.begin;
}

// Puts [begin, end) in the ring: a part of the header, of the payload, or of both.
void Engine::prepare(Request& request) {
  Lane& lane = *request.lane;
  const std::uint64_t header_bytes = lane.transfer.place.header_bytes;
  unsigned count = 0;
  if (request.begin < header_bytes) {
    request.pieces[count++] = {lane.header().data() + request.begin,
                               std::min(request.end, header_bytes) - request.begin};
  }
  if (request.end > header_bytes) {
    const std::uint64_t from = std::max(request.begin, header_bytes) - header_bytes;
    request.pieces[count++] = {lane.current.memory + from, request.end - header_bytes - from};
  }
  io_uring_sqe* entry = ::io_uring_get_sqe(ring_->get());
  HEADRACE_ASSERT(entry != nullptr, "the ring has an entry for every request");
  const std::uint64_t offset = file_offset(request);
  if (count == 1) {
    const auto bytes = static_cast<unsigned>(request.pieces[0].iov_len);  // at most 1 GiB
    if (is_write(lane)) {
      ::io_uring_prep_write(entry, store_.file(0).fd(), request.pieces[0].iov_base, bytes, offset);
    } else {
      ::io_uring_prep_read(entry, store_.file(0).fd(), request.pieces[0].iov_base, bytes, offset);
    }
  } else if (is_write(lane)) {
    ::io_uring_prep_writev(entry, store_.file(0).fd(), request.pieces.data(), count, offset);
  } else {
    ::io_uring_prep_readv(entry, store_.file(0).fd(), request.pieces.data(), count, offset);
  }
  ::io_uring_sqe_set_data(entry, &request);
}

void Engine::arm_wake() {
  if (wake_armed_) {
    return;
  }
  io_uring_sqe* entry = ::io_uring_get_sqe(ring_->get());
  HEADRACE_ASSERT(entry != nullptr, "the ring has an entry for the eventfd");
  ::io_uring_prep_poll_add(entry, signals_.wake.get(), POLLIN);
  ::io_uring_sqe_set_data(entry, &signals_);
  wake_armed_ = true;
}

void Engine::submit_and_sleep(std::int64_t timeout_ns) {
  arm_wake();
  io_uring_cqe* completion = nullptr;
  __kernel_timespec timeout{.tv_sec = timeout_ns / kNsPerS, .tv_nsec = timeout_ns % kNsPerS};
  const int result = timeout_ns > 0 ? ::io_uring_submit_and_wait_timeout(
                                          ring_->get(), &completion, 1, &timeout, nullptr)
                                    : ::io_uring_submit_and_wait(ring_->get(), 1);
  if (result >= 0 || result == -ETIME || result == -EINTR) {
    return;
  }
  // The kernel is short of memory, or has completions that it wants to be taken first.
  HEADRACE_ASSERT(result == -EAGAIN || result == -EBUSY || result == -ENOMEM,
                  "io_uring_enter takes what the engine gives it");
  std::this_thread::sleep_for(std::chrono::nanoseconds(kStarvedSleepNs));
}

void Engine::take_completions() {
  std::array<io_uring_cqe*, 64> batch{};
  for (;;) {
    const unsigned count =
        ::io_uring_peek_batch_cqe(ring_->get(), batch.data(), static_cast<unsigned>(batch.size()));
    if (count == 0) {
      return;
    }
    for (unsigned i = 0; i < count; ++i) {
      const io_uring_cqe& completion = *batch[i];
      if (completion.user_data == LIBURING_UDATA_TIMEOUT) {
        continue;  // of submit_and_wait_timeout, on kernels without IORING_FEAT_EXT_ARG
      }
      void* data = ::io_uring_cqe_get_data(&completion);
      if (data == &signals_) {
        take_wake();
      } else {
        complete(*static_cast<Request*>(data), completion.res);
      }
    }
    ::io_uring_cq_advance(ring_->get(), count);
  }
}

void Engine::take_wake() {
  wake_armed_ = false;
  const std::scoped_lock lock(signals_.mutex);
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(signals_.wake.get(), &count, sizeof(count));
  signals_.wake_written = false;  // whoever comes from now on writes again
}

void Engine::complete(Request& request, int result) {
  Lane& lane = *request.lane;
  const std::uint64_t wanted = request.end - request.begin;
  if (options_.faults != nullptr) {
    result = options_.faults->on_completion(
        IoRequest{.write = is_write(lane), .offset = file_offset(request), .bytes = wanted},
        result);
  }
  const char* operation = is_write(lane) ? "write" : "read";
  const std::string& path = store_.data_path();
  if (result < 0) {
    if ((result == -EINTR || result == -EAGAIN) && request.retries < kRetriesMax) {
      retry(request, 0);
      return;
    }
    raise(lane, transfer_error(operation, path, file_offset(request), -result));
    release(request);
    return;
  }
  const auto moved = static_cast<std::uint64_t>(result);
  HEADRACE_ASSERT(moved <= wanted, "the kernel moves no more than it was asked");
  if (moved == wanted) {
    lane.transfer.finished += wanted;
    (is_write(lane) ? write_bytes_ : read_bytes_).fetch_add(wanted, std::memory_order_relaxed);
    release(request);
    return;
  }
  // Direct I/O goes on at a page only. A part of a page again and again is the end of the file.
  const std::uint64_t pages = moved / kPageBytes * kPageBytes;
  if (pages == 0 && (moved == 0 || request.retries >= kRetriesMax)) {
    raise(lane,
          is_write(lane)
              ? operating_error(fmt::format("nvme tier: cannot write '{}' at offset {}",
                                            path,
                                            file_offset(request)))
                    .with_why(fmt::format("the system took {} bytes of {}", moved, wanted))
              : truncated_error(path, file_offset(request)));
    release(request);
    return;
  }
  retry(request, pages);
}

// Gives the rest of a request to the kernel again. After a fault nothing more is given.
void Engine::retry(Request& request, std::uint64_t progress) {
  Lane& lane = *request.lane;
  lane.transfer.finished += progress;
  (is_write(lane) ? write_bytes_ : read_bytes_).fetch_add(progress, std::memory_order_relaxed);
  if (runtime_.fault.raised()) {
    release(request);
    return;
  }
  request.begin += progress;
  request.retries = progress > 0 ? 0 : request.retries + 1;
  resubmitted_.fetch_add(1, std::memory_order_relaxed);
  prepare(request);
}

void Engine::release(Request& request) {
  --request.lane->transfer.in_flight;
  request.lane = nullptr;
  free_requests_.push_back(&request);
}

void Engine::raise(const Lane& lane, Error error) {
  if (lane.current.kind != LaneEntry::Kind::kBody && error.code != ExitCode::kCorrupt) {
    error.why += ", in " + store_.describe(lane.current.key);
  }
  error.trace.push_back(
      fmt::format("'{}' (#{} on {})", lane.current.name, lane.current.id, lane.name()));
  runtime_.fault.raise(std::move(error));
}

}  // namespace

Result<std::unique_ptr<IoEngine>> IoEngine::create(Runtime& runtime,
                                                   Store& store,
                                                   const EngineOptions& options) {
  HEADRACE_ASSERT(options.lanes > 0 && options.io_depth > 0, "an engine has lanes and requests");
  HEADRACE_ASSERT(options.request_bytes_max >= kPageBytes &&
                      options.request_bytes_max % kPageBytes == 0 &&
                      options.request_bytes_max <= kRequestBytesLimit,
                  "requests are of whole pages, at most 1 GiB");
  std::size_t header_bytes = 0;
  for (const TileBytes& tile : store.contents().tiles) {
    header_bytes = std::max<std::size_t>(
        header_bytes, format::header_bytes(std::max(tile.param_bytes, tile.state_bytes)));
  }
  HEADRACE_ASSIGN(PageBuffer headers,
                  PageBuffer::create(header_bytes * static_cast<std::size_t>(options.lanes)));
  auto engine = std::make_unique<Engine>(runtime, store, options, std::move(headers));
  HEADRACE_TRY(engine->start());
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace headrace::tiers::nvme
