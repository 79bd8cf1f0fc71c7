// Element-by-element operations and rotary positions, over blocks of a fixed number of elements.

#include <cmath>
#include <cstring>

#include "kernels/cpu/simd.hpp"

namespace headrace::kernels {

namespace {

// 64 KiB of each operand: large enough to hide a team's start, small enough for L2.
constexpr std::int64_t kBlockElements = 16384;

// Calls body(begin, count) for each block of a range.
template <class F>
void for_blocks(int threads, std::int64_t elements, const F& body) {
  cpu::parallel_for(threads, cpu::ceil_div(elements, kBlockElements), [&](std::int64_t block) {
    const std::int64_t begin = block * kBlockElements;
    body(begin, std::min(kBlockElements, elements - begin));
  });
}

}  // namespace

void add(const Context& context, const AddArgs& args) {
  const float* a = cpu::elements_of(args.a);
  const float* b = cpu::elements_of(args.b);
  float* y = cpu::elements_of(args.y);
  const std::int64_t elements = args.elements;
  cpu::Spans reads;
  reads.add(a, elements).add(b, elements);
  cpu::Spans writes;
  writes.add(y, elements);
  cpu::submit(context, "add", reads, writes, [=, threads = context.threads] {
    for_blocks(threads, elements, [&](std::int64_t begin, std::int64_t count) {
      cpu::add_range(a + begin, b + begin, y + begin, count);
    });
  });
}

void copy(const Context& context, const CopyArgs& args) {
  const float* x = cpu::elements_of(args.x);
  float* y = cpu::elements_of(args.y);
  const std::int64_t elements = args.elements;
  cpu::Spans reads;
  reads.add(x, elements);
  cpu::Spans writes;
  writes.add(y, elements);
  cpu::submit(context, "copy", reads, writes, [=, threads = context.threads] {
    for_blocks(threads, elements, [&](std::int64_t begin, std::int64_t count) {
      std::memcpy(y + begin, x + begin, static_cast<std::size_t>(count) * sizeof(float));
    });
  });
}

void zero(const Context& context, const ZeroArgs& args) {
  float* x = cpu::elements_of(args.x);
  const std::int64_t elements = args.elements;
  cpu::Spans writes;
  writes.add(x, elements);
  cpu::submit(context, "zero", {}, writes, [=, threads = context.threads] {
    for_blocks(threads, elements, [&](std::int64_t begin, std::int64_t count) {
      std::memset(x + begin, 0, static_cast<std::size_t>(count) * sizeof(float));
    });
  });
}

void gelu(const Context& context, const GeluArgs& args) {
  const float* x = cpu::elements_of(args.x);
  float* y = cpu::elements_of(args.y);
  const std::int64_t elements = args.elements;
  cpu::Spans reads;
  reads.add(x, elements);
  cpu::Spans writes;
  writes.add(y, elements);
  cpu::submit(context, "gelu", reads, writes, [=, threads = context.threads] {
    for_blocks(threads, elements, [&](std::int64_t begin, std::int64_t count) {
      cpu::gelu_range(x + begin, y + begin, count);
    });
  });
}

void gelu_backward(const Context& context, const GeluBackwardArgs& args) {
  const float* x = cpu::elements_of(args.x);
  const float* dy = cpu::elements_of(args.dy);
  float* dx = cpu::elements_of(args.dx);
  const std::int64_t elements = args.elements;
  cpu::Spans reads;
  reads.add(x, elements).add(dy, elements);
  cpu::Spans writes;
  writes.add(dx, elements);
  cpu::submit(context, "gelu_backward", reads, writes, [=, threads = context.threads] {
    for_blocks(threads, elements, [&](std::int64_t begin, std::int64_t count) {
      cpu::gelu_backward_range(x + begin, dy + begin, dx + begin, count);
    });
  });
}

void swiglu(const Context& context, const SwigluArgs& args) {
  const float* gate = cpu::elements_of(args.gate);
  const float* up = cpu::elements_of(args.up);
  float* y = cpu::elements_of(args.y);
  const std::int64_t elements = args.elements;
  cpu::Spans reads;
  reads.add(gate, elements).add(up, elements);
  cpu::Spans writes;
  writes.add(y, elements);
  cpu::submit(context, "swiglu", reads, writes, [=, threads = context.threads] {
    for_blocks(threads, elements, [&](std::int64_t begin, std::int64_t count) {
      cpu::swiglu_range(gate + begin, up + begin, y + begin, count);
    });
  });
}

void swiglu_backward(const Context& context, const SwigluBackwardArgs& args) {
  const cpu::SwigluBackwardRange all = {.gate = cpu::elements_of(args.gate),
                                        .up = cpu::elements_of(args.up),
                                        .dy = cpu::elements_of(args.dy),
                                        .dgate = cpu::elements_of(args.dgate),
                                        .dup = cpu::elements_of(args.dup),
                                        .count = args.elements};
  cpu::Spans reads;
  reads.add(all.gate, all.count).add(all.up, all.count).add(all.dy, all.count);
  cpu::Spans writes;
  writes.add(all.dgate, all.count).add(all.dup, all.count);
  cpu::submit(context, "swiglu_backward", reads, writes, [=, threads = context.threads] {
    for_blocks(threads, all.count, [&](std::int64_t begin, std::int64_t count) {
      cpu::swiglu_backward_range({.gate = all.gate + begin,
                                  .up = all.up + begin,
                                  .dy = all.dy + begin,
                                  .dgate = all.dgate + begin,
                                  .dup = all.dup + begin,
                                  .count = count});
    });
  });
}

void rope_table(const RopeTable& table, std::span<float> cosine, std::span<float> sine) {
  const std::size_t half = table.radians.size();
  const std::size_t size = static_cast<std::size_t>(table.positions) * half;
  HEADRACE_ASSERT(cosine.size() == size && sine.size() == size, "a table of the wrong size");
  for (std::int64_t position = 0; position < table.positions; ++position) {
    for (std::size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(position) * table.radians[j];
      const std::size_t at = static_cast<std::size_t>(position) * half + j;
      cosine[at] = static_cast<float>(table.amplitude * std::cos(angle));
      sine[at] = static_cast<float>(table.amplitude * std::sin(angle));
    }
  }
}

void rope(const Context& context, const RopeArgs& args) {
  HEADRACE_ASSERT(args.head_dim % 2 == 0, "rotary positions pair the elements of a head");
  const cpu::RowsView x = cpu::view_of(args.x);
  const std::int64_t rows = args.batch * args.sequence;
  const std::int64_t half = args.head_dim / 2;
  cpu::Spans reads;
  reads.add(args.cosine, args.sequence * half).add(args.sine, args.sequence * half);
  cpu::Spans writes;
  writes.add_rows(x, rows, args.heads * args.head_dim);
  cpu::submit(context, "rope", reads, writes, [=, args = args, threads = context.threads] {
    constexpr std::int64_t kBlockRows = 16;
    cpu::parallel_for(threads, cpu::ceil_div(rows, kBlockRows), [&](std::int64_t block) {
      const std::int64_t end = std::min(rows, (block + 1) * kBlockRows);
      for (std::int64_t row = block * kBlockRows; row < end; ++row) {
        const std::int64_t position = row % args.sequence;
        cpu::rope_row({.x = x.data + row * x.stride,
                       .heads = args.heads,
                       .head_dim = args.head_dim,
                       .cosine = args.cosine + position * half,
                       .sine = args.sine + position * half,
                       .sign = args.inverse ? -1.0F : 1.0F});
      }
    });
  });
}

}  // namespace headrace::kernels
