// What every back end promises, for each of them: io_uring, threads, the simulator.
#include "tiers/nvme/io_backend.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "tiers/nvme/data_file.hpp"
#include "tiers/nvme/io_test_support.hpp"
#include "tiers/nvme/simulated_disk.hpp"
#include "tiers/nvme/test_support.hpp"

namespace headrace::tiers::nvme {
namespace {

using testing::pages;
using testing::RepeatedMemory;
using testing::TestFolder;

struct Kind {
  const char* name;
  BackendFactory make;
  bool simulated;
};

void fill_randomly(std::span<std::byte> memory, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < memory.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(memory.data() + at, &word, sizeof(word));
  }
}

IoRequest request_of(bool write, std::uint64_t offset, std::span<std::byte> memory) {
  IoRequest request{.write = write, .offset = offset, .bytes = memory.size()};
  request.pieces[0] = {memory.data(), memory.size()};
  return request;
}

class Backends : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    file_ = make_file(DataFile::Mode::kCreate);
    ASSERT_NE(file_, nullptr);
  }

  std::unique_ptr<BlockFile> make_file(DataFile::Mode mode) {
    if (GetParam().simulated) {
      SimulatedDiskOptions options;
      options.seed = testing::test_seed();
      return std::make_unique<SimulatedFile>(
          std::make_shared<SimulatedDisk>("/simulated/data", options, power_));
    }
    const UniqueFd directory(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    auto file = DataFile::open_at(directory.get(), "data", folder_.path() + "/data", mode);
    if (!file) {
      ADD_FAILURE() << format_error(file.error(), true);
      return nullptr;
    }
    if (mode == DataFile::Mode::kCreate) {
      const PageBuffer page = pages(kPageBytes);
      HEADRACE_EXPECT_OK((*file)->write(0, page.bytes()));
    }
    HEADRACE_EXPECT_OK((*file)->enable_direct_io(false));
    return std::move(*file);
  }

  // Sparse where the medium can be.
  void set_size(std::uint64_t bytes) {
    if (GetParam().simulated) {
      HEADRACE_EXPECT_OK(file_->allocate(bytes));
    } else {
      EXPECT_EQ(::ftruncate(file_->fd(), static_cast<off_t>(bytes)), 0);
    }
  }

  std::unique_ptr<IoBackend> make(unsigned depth,
                                  std::span<const std::span<std::byte>> buffers = {}) {
    auto backend = GetParam().make(*file_, {.depth = depth, .buffers = buffers});
    if (!backend) {
      ADD_FAILURE() << format_error(backend.error(), true);
      return nullptr;
    }
    return std::move(*backend);
  }

  // The next completion, whatever else ends a wait before.
  static IoCompletion next(IoBackend& backend) {
    std::array<IoCompletion, 1> completion{};
    while (backend.wait(completion, std::nullopt) == 0) {
    }
    return completion[0];
  }

  static int run(IoBackend& backend, IoRequest& request) {
    backend.queue(request);
    const IoCompletion completion = next(backend);
    EXPECT_EQ(completion.request, &request);
    return completion.result;
  }

  std::vector<std::byte> contents(std::uint64_t offset, std::size_t bytes) {
    std::vector<std::byte> found(bytes);
    HEADRACE_EXPECT_OK(file_->read(offset, found));
    return found;
  }

  TestFolder folder_;
  PowerSupply power_;
  std::unique_ptr<BlockFile> file_;
};

bool equal(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() && std::memcmp(left.data(), right.data(), left.size()) == 0;
}

TEST_P(Backends, EveryNumberOfPagesInOneOrTwoPiecesIsWhole) {
  constexpr std::size_t kPagesMax = 257;
  const PageBuffer source = pages(kPagesMax * kPageBytes);
  const PageBuffer target = pages(2 * kPagesMax * kPageBytes);
  fill_randomly(source.bytes(), testing::test_seed());
  const std::array<std::span<std::byte>, 1> registered = {target.bytes().first(100 * kPageBytes)};
  const auto backend = make(2, registered);
  for (const std::size_t count : {1UL, 2UL, 3UL, 7UL, 8UL, 9UL, 31UL, 32UL, 33UL, 256UL, 257UL}) {
    for (const std::uint64_t at : {0UL, 1UL, 7UL, 4000UL}) {
      for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, count / 2, count - 1}) {
        const std::size_t bytes = count * kPageBytes;
        const std::size_t first = cut * kPageBytes;
        IoRequest write = request_of(true, at * kPageBytes, source.bytes().first(bytes));
        // The pieces of the read lie apart.
        IoRequest read = request_of(false, at * kPageBytes, target.bytes().first(bytes));
        std::byte* const second = target.bytes().data() + kPagesMax * kPageBytes;
        if (first > 0) {
          write.piece_count = read.piece_count = 2;
          write.pieces = {iovec{source.bytes().data(), first},
                          iovec{source.bytes().data() + first, bytes - first}};
          read.pieces = {iovec{target.bytes().data(), first}, iovec{second, bytes - first}};
        }
        ASSERT_EQ(run(*backend, write), static_cast<int>(bytes));
        ASSERT_TRUE(equal(contents(at * kPageBytes, bytes), source.bytes().first(bytes)));
        ASSERT_EQ(run(*backend, read), static_cast<int>(bytes));
        const std::size_t in_first = first > 0 ? first : bytes;
        ASSERT_TRUE(equal(target.bytes().first(in_first), source.bytes().first(in_first)));
        ASSERT_TRUE(
            equal({second, bytes - in_first}, source.bytes().subspan(in_first, bytes - in_first)));
      }
    }
  }
}

TEST_P(Backends, AtEveryDepthRandomRequestsEqualAModelInMemory) {
  constexpr std::size_t kSlots = 24;
  constexpr std::size_t kSlotBytes = 5 * kPageBytes;
  std::mt19937_64 random(testing::test_seed());
  set_size(kSlots * kSlotBytes);
  const PageBuffer memory = pages(kSlots * kSlotBytes);
  const std::array<std::span<std::byte>, 1> registered = {memory.bytes().first(9 * kSlotBytes)};
  std::array<std::vector<std::byte>, kSlots> model;
  model.fill(std::vector<std::byte>(kSlotBytes));
  const std::vector<std::byte> zeros(kSlotBytes);
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    HEADRACE_EXPECT_OK(file_->write(slot * kSlotBytes, zeros));
  }
  for (unsigned depth = 1; depth <= 12; ++depth) {
    const auto backend = make(depth, registered);
    std::array<IoRequest, kSlots> requests;
    std::array<bool, kSlots> busy{};
    unsigned under_way = 0;
    for (int left = 60; left > 0 || under_way > 0;) {
      for (; under_way < depth && left > 0; --left) {
        const std::size_t slot = random() % kSlots;
        if (std::exchange(busy[slot], true)) {
          continue;
        }
        const std::span<std::byte> place = memory.bytes().subspan(slot * kSlotBytes, kSlotBytes);
        requests[slot] = request_of(random() % 2 == 0, slot * kSlotBytes, place);
        fill_randomly(place, random());
        if (requests[slot].write) {
          model[slot].assign(place.begin(), place.end());
        }
        backend->queue(requests[slot]);
        ++under_way;
      }
      std::array<IoCompletion, 3> completions{};
      const std::size_t count = backend->wait(completions, std::nullopt);
      ASSERT_LE(count, completions.size());
      for (const IoCompletion& completion : std::span(completions).first(count)) {
        const std::size_t slot = completion.request->offset / kSlotBytes;
        ASSERT_TRUE(std::exchange(busy[slot], false)) << "a request completes once";
        ASSERT_EQ(completion.result, static_cast<int>(kSlotBytes));
        ASSERT_TRUE(equal(memory.bytes().subspan(slot * kSlotBytes, kSlotBytes), model[slot]));
        --under_way;
      }
    }
  }
}

TEST_P(Backends, ATransferThatMeetsTheEndOfTheFileIsShort) {
  set_size(3 * kPageBytes);
  const PageBuffer memory = pages(8 * kPageBytes);
  const auto backend = make(1);
  IoRequest read = request_of(false, kPageBytes, memory.bytes());
  EXPECT_EQ(run(*backend, read), static_cast<int>(2 * kPageBytes));
  read.offset = 3 * kPageBytes;
  EXPECT_EQ(run(*backend, read), 0);
}

TEST_P(Backends, AFailedRequestSaysWhyAndTheNextOneRuns) {
  std::unique_ptr<BlockFile> read_only;
  if (GetParam().simulated) {
    dynamic_cast<SimulatedFile&>(*file_).disk().set_rates({.write_error = 1});
  } else {
    read_only = make_file(DataFile::Mode::kRead);
    file_.swap(read_only);
  }
  const PageBuffer memory = pages(kPageBytes);
  const auto backend = make(2);
  for (int round = 0; round < 3; ++round) {
    IoRequest write = request_of(true, 0, memory.bytes());
    EXPECT_EQ(run(*backend, write), GetParam().simulated ? -EIO : -EBADF);
    IoRequest read = request_of(false, 0, memory.bytes());
    EXPECT_GE(run(*backend, read), 0);
  }
}

TEST_P(Backends, AWakeBeforeAWaitIsKeptAndNotCounted) {
  const auto backend = make(1);
  std::array<IoCompletion, 1> completions{};
  for (int round = 0; round < 100; ++round) {
    backend->wake();
    backend->wake();
    EXPECT_EQ(backend->wait(completions, std::nullopt), 0U);
    EXPECT_EQ(backend->wait(completions, 0), 0U);
  }
  const std::int64_t begin_ns = backend->now_ns();
  EXPECT_EQ(backend->wait(completions, 1'000'000), 0U);
  EXPECT_GE(backend->now_ns() - begin_ns, 1'000'000);
}

TEST_P(Backends, AWakeEndsAWaitWhenItComes) {
  const auto backend = make(1);
  constexpr int kRounds = 200;
  std::atomic<int> asked{0};
  std::thread other([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (asked.load() < round) {
        std::this_thread::yield();
      }
      backend->wake();
    }
  });
  std::array<IoCompletion, 1> completions{};
  for (int round = 1; round <= kRounds; ++round) {
    asked.store(round);
    EXPECT_EQ(backend->wait(completions, std::nullopt), 0U);
  }
  other.join();
}

TEST_P(Backends, ARequestBeyondTwoGibibytesIsShortAndCanBeGoneOnWith) {
  constexpr std::size_t kBytes = (std::size_t{2} << 30U) + 3 * kPageBytes;
  set_size(kBytes);
  const RepeatedMemory memory(kBytes);
  const std::array<std::span<std::byte>, 1> registered = {memory.bytes()};
  const auto backend = make(1, registered);
  IoRequest read = request_of(false, 0, memory.bytes());
  while (read.bytes > 0) {
    const int moved = run(*backend, read);
    ASSERT_GT(moved, 0);
    ASSERT_EQ(static_cast<std::size_t>(moved) % kPageBytes, 0U);
    read.bytes -= static_cast<std::size_t>(moved);
    read.offset += static_cast<std::uint64_t>(moved);
    read.pieces[0] = {memory.bytes().data() + read.offset, read.bytes};
  }
  EXPECT_EQ(read.offset, kBytes);
}

TEST_P(Backends, OffsetsBeyondFourGibibytesAreTheirOwn) {
  constexpr std::uint64_t kFar = std::uint64_t{5} << 30U;
  set_size(kFar + kPageBytes);
  const PageBuffer near = pages(kPageBytes);
  const PageBuffer far = pages(kPageBytes);
  fill_randomly(near.bytes(), 1);
  fill_randomly(far.bytes(), 2);
  const auto backend = make(2);
  IoRequest first = request_of(true, kFar % (std::uint64_t{1} << 32U), near.bytes());
  IoRequest second = request_of(true, kFar, far.bytes());
  EXPECT_EQ(run(*backend, first), static_cast<int>(kPageBytes));
  EXPECT_EQ(run(*backend, second), static_cast<int>(kPageBytes));
  EXPECT_TRUE(equal(contents(first.offset, kPageBytes), near.bytes()));
  EXPECT_TRUE(equal(contents(second.offset, kPageBytes), far.bytes()));
}

TEST_P(Backends, DestructionAwaitsWhatIsUnderWay) {
  constexpr std::size_t kCount = 8;
  constexpr std::size_t kBytes = 64 * kPageBytes;
  const PageBuffer memory = pages(kCount * kBytes);
  fill_randomly(memory.bytes(), testing::test_seed());
  std::array<IoRequest, kCount> requests;
  for (const bool handed_over : {false, true}) {
    auto backend = make(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      requests[i] = request_of(true, i * kBytes, memory.bytes().subspan(i * kBytes, kBytes));
      backend->queue(requests[i]);
    }
    std::array<IoCompletion, 2> completions{};
    if (handed_over) {
      EXPECT_LE(backend->wait(completions, 0), 2U);
    }
    backend.reset();
    EXPECT_TRUE(equal(contents(0, kCount * kBytes), memory.bytes()));
  }
}

TEST_P(Backends, ACancelledRequestCompletesOnceWholeOrNotAtAll) {
  constexpr std::size_t kCount = 16;
  constexpr std::size_t kBytes = 256 * kPageBytes;
  set_size(kCount * kBytes);
  const PageBuffer memory = pages(kCount * kBytes);
  for (int round = 0; round < 5; ++round) {
    const auto backend = make(kCount);
    std::array<IoRequest, kCount> requests;
    std::map<IoRequest*, int> results;
    for (std::size_t i = 0; i < kCount; ++i) {
      requests[i] = request_of(false, i * kBytes, memory.bytes().subspan(i * kBytes, kBytes));
      backend->queue(requests[i]);
    }
    std::array<IoCompletion, 1> completions{};
    for (std::size_t count = backend->wait(completions, 0); count > 0; count = 0) {
      results[completions[0].request] = completions[0].result;
    }
    backend->cancel();
    while (results.size() < kCount) {
      const IoCompletion completion = next(*backend);
      EXPECT_TRUE(results.emplace(completion.request, completion.result).second);
    }
    for (const auto& [request, result] : results) {
      EXPECT_TRUE(result == static_cast<int>(kBytes) || result == -ECANCELED) << result;
    }
  }
}

TEST_P(Backends, AnyNumberOfBuffersIsRegisteredOrDoneWithout) {
  constexpr std::size_t kBuffers = 3000;  // more than any kernel registers at once
  const PageBuffer memory = pages(2 * kBuffers * kPageBytes);
  std::vector<std::span<std::byte>> buffers;
  for (std::size_t i = 0; i < kBuffers; ++i) {
    buffers.push_back(memory.bytes().subspan(2 * i * kPageBytes, kPageBytes));
  }
  fill_randomly(memory.bytes(), testing::test_seed());
  const auto backend = make(4, buffers);
  EXPECT_LE(backend->facts().registered_bytes, kBuffers * kPageBytes);
  for (std::size_t i = 0; i < kBuffers; i += 97) {
    // The buffer, the memory behind it, and both.
    for (const auto& [at, count] :
         {std::pair{0UL, 1UL}, std::pair{1UL, 1UL}, std::pair{0UL, 2UL}}) {
      const std::span<std::byte> place =
          memory.bytes().subspan((2 * i + at) * kPageBytes, count * kPageBytes);
      IoRequest write = request_of(true, i * kPageBytes, place);
      ASSERT_EQ(run(*backend, write), static_cast<int>(place.size()));
      ASSERT_TRUE(equal(contents(i * kPageBytes, place.size()), place));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         Backends,
                         ::testing::Values(Kind{"uring", make_uring_backend, false},
                                           Kind{"threads", make_thread_backend, false},
                                           Kind{"simulated", make_simulated_backend, true}),
                         [](const auto& kind) { return kind.param.name; });

std::unique_ptr<DataFile> new_file(const TestFolder& folder) {
  const UniqueFd directory(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  auto file =
      DataFile::open_at(directory.get(), "data", folder.path() + "/data", DataFile::Mode::kCreate);
  EXPECT_TRUE(file.has_value());
  return file ? std::move(*file) : nullptr;
}

TEST(UringBackend, RegistersWhatTheLimitOfLockedMemoryAllowsAndWorks) {
  constexpr std::size_t kLimitBytes = std::size_t{8} << 20U;
  const TestFolder folder;
  const auto file = new_file(folder);
  ASSERT_NE(file, nullptr);
  const PageBuffer memory = pages(8 * kLimitBytes);
  const std::array<std::span<std::byte>, 1> buffers = {memory.bytes()};
  const int result = testing::in_a_child([&] {
    const rlimit limit{.rlim_cur = kLimitBytes, .rlim_max = kLimitBytes};
    // Not root: a process with CAP_IPC_LOCK has no limit.
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || !testing::become_an_ordinary_user()) {
      return 77;
    }
    const auto backend = make_uring_backend(*file, {.depth = 2, .buffers = buffers});
    if (!backend) {
      return 77;
    }
    const std::size_t registered = (*backend)->facts().registered_bytes;
    if (registered == 0 || registered > kLimitBytes) {
      return 1;
    }
    // One request in registered memory, one across its end, one beyond.
    std::array<IoCompletion, 1> completions{};
    for (const std::size_t at : {std::size_t{0}, registered - kPageBytes, 6 * kLimitBytes}) {
      IoRequest write = request_of(true, 0, memory.bytes().subspan(at, 2 * kPageBytes));
      (*backend)->queue(write);
      while ((*backend)->wait(completions, std::nullopt) == 0) {
      }
      if (completions[0].result != static_cast<int>(2 * kPageBytes)) {
        return 2;
      }
    }
    return 0;
  });
  if (result == 77) {
    GTEST_SKIP() << "no io_uring for an ordinary user here";
  }
  EXPECT_EQ(result, 0);
}

TEST(ThreadBackend, WhereNoThreadCanBeStartedItSaysWhatToDo) {
  const TestFolder folder;
  const auto file = new_file(folder);
  ASSERT_NE(file, nullptr);
  const int result = testing::in_a_child([&] {
    if (!testing::may_start_no_threads()) {
      return 77;
    }
    const auto backend = make_thread_backend(*file, {.depth = 8});
    return !backend && backend.error().hint.find("ulimit -u") != std::string::npos ? 0 : 1;
  });
  if (result == 77) {
    GTEST_SKIP() << "limits of processes cannot be set here";
  }
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace headrace::tiers::nvme
