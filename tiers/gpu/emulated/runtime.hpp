// What tests say to the emulated CUDA runtime, and what it found.
//
// It defines the functions of the CUDA runtime that tiers/gpu uses (cudart.cpp), with a device that
// is host memory and streams that are lists: operations run inside the host's calls, as few and as
// late as events allow, in an order that a seed chooses. So what a missing wait would let happen
// now and then on a GPU happens here, and the breach of a rule is a line of violations().
//
// One emulation a process. Threads: any; a kernel runs on the thread whose call made it run. Linked
// by tests only. Failure: calls return CUDA's errors; start() asserts that nothing is left alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "tiers/device.hpp"
#include "tiers/queue.hpp"

struct CUstream_st;

namespace headrace::tiers::gpu::emulated {

struct Options {
  std::uint64_t seed = 0;  // of the order and of how late things run
  int devices = 1;         // -1: there is no driver
  std::size_t device_bytes = std::size_t{256} << 20;
  // Copies of host memory that nobody registered are a violation; for benchmarks of them they run
  // within their call, after what their stream has before them.
  bool pageable_copies = false;
};

// A fresh machine: nothing is recorded, frozen or broken. Nothing of before may be alive.
void start(const Options& options);

// From here on memory, streams and events are neither made nor destroyed, and nothing synchronises:
// each such call is a violation and fails. Until thaw().
void freeze();
void thaw();

// The call after `calls` others fails with this cudaError_t, without doing anything. Errors after
// which a context is lost (cudaErrorIllegalAddress ...) then are the answer of every call. Releases
// happen all the same: only whether they were asked for counts.
void fail_call(std::uint64_t calls, int error);
// The same for the call of `function` ("cudaMemcpyAsync") after `calls` others of it: how often
// events are asked depends on time, how often anything else is called does not.
void fail_call_of(const std::string& function, std::uint64_t calls, int error);
// As a kernel does that goes wrong: the operation that runs after `operations` others, from now.
void fail_operation(std::uint64_t operations, int error);
// Calls since start(). cudaGetLastError and the names of errors do not count.
[[nodiscard]] std::uint64_t call_count();
[[nodiscard]] std::map<std::string, std::uint64_t> calls_by_function();
// Operations that ran since start().
[[nodiscard]] std::uint64_t operation_count();
// Of the call that fail_call() made fail: "cudaEventQuery"; "" if none has.
[[nodiscard]] std::string failed_call();

// Broken rules since start(), each with the operation; empty on a sound program.
[[nodiscard]] std::vector<std::string> violations();
// What is alive: streams, events, allocations, registrations. Empty once all is destroyed.
[[nodiscard]] std::vector<std::string> leaks();

// A function that cudaLaunchKernelExC accepts: called with pointers to copies of its arguments, of
// these sizes, with the device's memory open.
using Kernel = void (*)(void** arguments);
void register_kernel(Kernel kernel, std::vector<std::size_t> argument_bytes);

// What bodies that launch_body puts on streams hold while they run, as those of a CPU device do.
// Until start().
void use_cores(Cores& cores);

// Runs a queue's plain body as a kernel of `stream`: how CPU kernels stand in for GPU kernels. A
// body that fails is a launch failure, and its text a violation.
[[nodiscard]] int launch_body(CUstream_st* stream, const Body& body);

}  // namespace headrace::tiers::gpu::emulated
