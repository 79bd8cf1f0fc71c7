// What the tests of back ends and of the engine share: memory that is the same many times over,
// and back ends around back ends that change or note what passes.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "tiers/nvme/io_backend.hpp"

namespace headrace::tiers::nvme::testing {

// The same memory many times over, so that an extent of 2 GiB costs 2 MiB.
class RepeatedMemory {
 public:
  explicit RepeatedMemory(std::size_t bytes) {
    const int fd = ::memfd_create("nvme_test", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(fd, kPartBytes), 0);
    void* base = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base, MAP_FAILED);
    bytes_ = {static_cast<std::byte*>(base), bytes};
    for (std::size_t at = 0; at < bytes; at += kPartBytes) {
      EXPECT_NE(::mmap(bytes_.data() + at,
                       std::min(kPartBytes, bytes - at),
                       PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED,
                       fd,
                       0),
                MAP_FAILED);
    }
    ::close(fd);
  }

  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  ~RepeatedMemory() { ::munmap(bytes_.data(), bytes_.size()); }

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

  static constexpr std::size_t kPartBytes = std::size_t{2} << 20U;

 private:
  std::span<std::byte> bytes_;
};

// Passes everything on. Its children look at requests on their way, or change results.
class WrappedBackend : public IoBackend {
 public:
  explicit WrappedBackend(std::unique_ptr<IoBackend> inner) : inner_(std::move(inner)) {}

  void queue(IoRequest& request) override {
    on_queue(request);
    inner_->queue(request);
  }

  std::size_t wait(std::span<IoCompletion> completions,
                   std::optional<std::int64_t> timeout_ns) override {
    const std::size_t count = inner_->wait(completions, timeout_ns);
    for (IoCompletion& completion : completions.first(count)) {
      completion.result = on_completion(*completion.request, completion.result);
    }
    return count;
  }

  void wake() override { inner_->wake(); }

  void cancel() override { inner_->cancel(); }

  [[nodiscard]] std::int64_t now_ns() const override { return inner_->now_ns(); }

  [[nodiscard]] BackendFacts facts() const override { return inner_->facts(); }

 protected:
  virtual void on_queue(const IoRequest& /*request*/) {}

  // What the engine shall see.
  virtual int on_completion(const IoRequest& /*request*/, int result) { return result; }

 private:
  std::unique_ptr<IoBackend> inner_;
};

// Changes what completions say, so that every path after a fault of the system runs against real
// files. The rule runs on the engine's thread.
using CompletionRule = std::function<int(const IoRequest& request, int result)>;

inline BackendFactory with_rule(CompletionRule rule, BackendFactory make = make_system_backend) {
  class RuledBackend final : public WrappedBackend {
   public:
    RuledBackend(std::unique_ptr<IoBackend> inner, CompletionRule rule)
        : WrappedBackend(std::move(inner)), rule_(std::move(rule)) {}

   protected:
    int on_completion(const IoRequest& request, int result) override {
      return rule_(request, result);
    }

   private:
    CompletionRule rule_;
  };

  return [rule = std::move(rule), make = std::move(make)](
             BlockFile& file, const BackendOptions& options) -> Result<std::unique_ptr<IoBackend>> {
    HEADRACE_ASSIGN(std::unique_ptr<IoBackend> inner, make(file, options));
    return std::make_unique<RuledBackend>(std::move(inner), rule);
  };
}

}  // namespace headrace::tiers::nvme::testing
