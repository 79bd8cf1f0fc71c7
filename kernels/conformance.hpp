// The conformance suite of kernels.hpp: the same tests for every implementation.
//
// A Backend is an implementation on a machine (one instruction set of the CPU; later a CUDA
// device). A Case holds the arrays of one kernel call, each between guards; run() calls the kernel
// and checks what every kernel owes: it declares exactly its arrays and its workspace, leaves
// inputs and guards as they were, and needs no more workspace than it said, whatever that held.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"

namespace headrace::kernels::conformance {

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  virtual void activate() = 0;
  // Memory of the device, at an address that is a multiple of 64.
  [[nodiscard]] virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* memory) = 0;
  virtual void upload(std::byte* target, const std::byte* source, std::size_t bytes) = 0;
  virtual void download(std::byte* target, const std::byte* source, std::size_t bytes) = 0;
};

// The implementations that this machine can run.
[[nodiscard]] const std::vector<Backend*>& backends();

class ConformanceTest : public testing::TestWithParam<Backend*> {
 protected:
  void SetUp() override { GetParam()->activate(); }

  [[nodiscard]] Backend& backend() const { return *GetParam(); }
};

[[nodiscard]] std::string backend_name(const testing::TestParamInfo<Backend*>& info);

// NOLINTBEGIN(bugprone-macro-parentheses): a class is named
#define HEADRACE_CONFORMANCE(suite)                                                           \
  class suite : public ::headrace::kernels::conformance::ConformanceTest {};                  \
  INSTANTIATE_TEST_SUITE_P(Backends,                                                          \
                           suite,                                                             \
                           ::testing::ValuesIn(::headrace::kernels::conformance::backends()), \
                           ::headrace::kernels::conformance::backend_name)

// NOLINTEND(bugprone-macro-parentheses)

// Random numbers from HEADRACE_SEED, or a fixed one; the seed is printed once.
class Random {
 public:
  explicit Random(std::uint64_t stream);
  [[nodiscard]] std::vector<float> normal(std::int64_t count, double scale = 1.0);
  [[nodiscard]] std::vector<std::int32_t> integers(std::int64_t count,
                                                   std::int32_t low,
                                                   std::int32_t high);

 private:
  std::mt19937_64 engine_;
};

// An operation as a queue saw it.
struct Declared {
  std::string name;
  std::vector<tiers::MemorySpan> reads;
  std::vector<tiers::MemorySpan> writes;
};

// Runs each body at once, on the caller's thread, and keeps what was declared.
class RecordingQueue final : public tiers::Queue {
 public:
  explicit RecordingQueue(tiers::Runtime& runtime) : Queue(runtime, "recording") {}

  [[nodiscard]] const std::vector<Declared>& declared() const { return declared_; }

  void forget() { declared_.clear(); }

 protected:
  void push(const tiers::Operation& operation, tiers::Body body) override;
  void push_wait(const tiers::Event& event) override;

 private:
  std::vector<Declared> declared_;
};

class Case;

// An array of a case. `offset` elements before it make its address unaligned.
template <class T>
class Array {
 public:
  Array() = default;

  Array(Case* owner, std::size_t index, std::int64_t count)
      : owner_(owner), index_(index), count_(count) {}

  [[nodiscard]] T* data() const;

  [[nodiscard]] std::int64_t size() const { return count_; }

  [[nodiscard]] std::vector<T> get() const;

 private:
  Case* owner_ = nullptr;
  std::size_t index_ = 0;
  std::int64_t count_ = 0;
};

class Case {
 public:
  explicit Case(Backend& backend) : backend_(backend) {}

  ~Case();
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  template <class T>
  Array<T> input(const std::vector<T>& values, std::int64_t offset = 0) {
    return {this, add(bytes_of(values), sizeof(T), offset, false), ssize(values)};
  }

  // Written by the kernel; holds `values` before (for accumulation).
  template <class T>
  Array<T> output(const std::vector<T>& values, std::int64_t offset = 0) {
    return {this, add(bytes_of(values), sizeof(T), offset, true), ssize(values)};
  }

  // The same, full of NaN (0xff) before.
  template <class T>
  Array<T> output(std::int64_t count, std::int64_t offset = 0) {
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0) {
      std::memset(values.data(), 0xff, values.size() * sizeof(T));
    }
    return output(values, offset);
  }

  // Declared spans need not be the arrays exactly (strided views); they must lie inside them.
  void spans_lie_inside_arrays() { exact_spans_ = false; }

  // Calls the kernel with a workspace of exactly `workspace_bytes` and checks its debts. Outputs
  // begin as they were given, at every run.
  void run(std::size_t workspace_bytes,
           int threads,
           const std::function<void(const Context&)>& kernel);

 private:
  template <class T>
  friend class Array;

  struct Block {
    std::byte* memory = nullptr;  // guard, offset, contents, guard
    std::size_t bytes = 0;        // all of it
    std::size_t begin = 0;        // of the contents
    std::vector<std::byte> initial;
    bool output = false;
  };

  template <class T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    return bytes;
  }

  template <class T>
  static std::int64_t ssize(const std::vector<T>& values) {
    return static_cast<std::int64_t>(values.size());
  }

  std::size_t add(std::vector<std::byte> contents,
                  std::size_t element_bytes,
                  std::int64_t offset,
                  bool output);
  void reset(const Block& block);
  void check_block(const Block& block) const;
  void check_spans(const std::vector<tiers::MemorySpan>& spans,
                   bool outputs,
                   const tiers::MemorySpan& workspace) const;
  [[nodiscard]] std::vector<std::byte> download(std::size_t index) const;

  Backend& backend_;
  std::vector<Block> blocks_;
  bool exact_spans_ = true;
};

template <class T>
T* Array<T>::data() const {
  const Case::Block& block = owner_->blocks_[index_];
  return count_ == 0 ? nullptr : reinterpret_cast<T*>(block.memory + block.begin);
}

template <class T>
std::vector<T> Array<T>::get() const {
  const std::vector<std::byte> bytes = owner_->download(index_);
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return values;
}

// |got - expected| <= tolerance * (largest magnitude expected, at least `floor`), NaN never.
void expect_close(const std::vector<float>& got,
                  const std::vector<double>& expected,
                  double tolerance,
                  const char* what,
                  double floor = 1e-30);

template <class T>
[[nodiscard]] bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

[[nodiscard]] std::vector<double> widen(const std::vector<float>& values);

// The gradient rule's second half, by hand: a + b, element by element, in float.
[[nodiscard]] std::vector<float> sum_of(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace headrace::kernels::conformance
