// Unique<Traits>: the one owner type for handles of the system (descriptors, mappings, rings).
//
// Invariant: as large as its handle; closes it exactly once. Traits gives Handle, kEmpty and
// `static void close(Handle) noexcept`.
// Thread: as a plain value. Failure: closing does not report; what must be checked (a flush) is
// done before by its own call.
#pragma once

#include <unistd.h>

#include <utility>

namespace headrace {

template <class Traits>
class Unique {
 public:
  using Handle = typename Traits::Handle;

  Unique() = default;

  explicit Unique(Handle handle) : handle_(handle) {}

  Unique(Unique&& source) noexcept : handle_(source.release()) {}

  Unique& operator=(Unique&& source) noexcept {
    if (this != &source) {
      reset(source.release());
    }
    return *this;
  }

  Unique(const Unique&) = delete;
  Unique& operator=(const Unique&) = delete;

  ~Unique() { reset(); }

  [[nodiscard]] Handle get() const { return handle_; }

  [[nodiscard]] bool has_value() const { return handle_ != Traits::kEmpty; }

  explicit operator bool() const { return has_value(); }

  // Gives the handle up without closing it.
  [[nodiscard]] Handle release() { return std::exchange(handle_, Traits::kEmpty); }

  void reset(Handle handle = Traits::kEmpty) noexcept {
    const Handle old = std::exchange(handle_, handle);
    if (old != Traits::kEmpty) {
      Traits::close(old);
    }
  }

 private:
  Handle handle_ = Traits::kEmpty;
};

struct FileDescriptorTraits {
  using Handle = int;
  static constexpr Handle kEmpty = -1;

  static void close(Handle handle) noexcept { ::close(handle); }
};

using UniqueFd = Unique<FileDescriptorTraits>;

}  // namespace headrace
