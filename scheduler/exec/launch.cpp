// One instruction becomes operations of its queue. Operands come in the order that program.hpp
// states.
#include <cstring>

#include "core/assert.hpp"
#include "optim_cpu/convert.hpp"
#include "scheduler/exec/executor_impl.hpp"
#include "scheduler/exec/state_format.hpp"

namespace headrace::exec {

using plan::Access;
using plan::Instruction;
using plan::InstructionKind;
using plan::QueueKind;

namespace {

tiers::nvme::ExtentKey key_of(const Instruction& instruction) {
  using tiers::nvme::ExtentKind;
  tiers::nvme::ExtentKey key{.unit = static_cast<std::uint32_t>(instruction.unit),
                             .tile = static_cast<std::uint32_t>(instruction.index),
                             .kind = ExtentKind::kSpill};
  if (instruction.kind == InstructionKind::kReadParam ||
      instruction.kind == InstructionKind::kWriteParam) {
    key.kind = ExtentKind::kParam;
  } else if (instruction.kind == InstructionKind::kReadState ||
             instruction.kind == InstructionKind::kWriteState) {
    key.kind = ExtentKind::kState;
  }
  return key;
}

// In blocks of its tile, which lies over the NUMA nodes as one.
optim::Threads::Within place_of(const TileJob& job, const Segment& segment) {
  return {.begin = segment.tile_offset / optim::kBlockElements,
          .total = optim::count_blocks(job.tile.elements)};
}

}  // namespace

tiers::Queue& ExecutorImpl::queue_of(const Instruction& instruction) {
  switch (instruction.queue) {
    case QueueKind::kCompute:
      return device_->compute();
    case QueueKind::kH2d:
      return device_->h2d();
    case QueueKind::kD2h:
      return device_->d2h();
    case QueueKind::kNvme:
      return io_->lane_for(instruction.lane, key_of(instruction));
    case QueueKind::kHost:
      break;
  }
  return *host_queue_;
}

std::span<std::byte> ExecutorImpl::memory_of(const Access& access) {
  if (access.buffer < 0) {
    return {};
  }
  return extents_[static_cast<std::size_t>(access.buffer)].memory().subspan(access.offset,
                                                                            access.bytes);
}

template <class T>
T* ExecutorImpl::pointer(const Instruction& instruction, std::size_t operand) {
  return reinterpret_cast<T*>(memory_of(instruction.accesses[operand]).data());
}

std::span<const std::int32_t> ExecutorImpl::tokens_of(int micro_batch) const {
  const auto rows = static_cast<std::size_t>(spec_.rows());
  return running_.tokens.subspan(static_cast<std::size_t>(micro_batch) * rows, rows);
}

void ExecutorImpl::launch(const Instruction& instruction, std::uint64_t number) {
  switch (instruction.kind) {
    case InstructionKind::kReadParam:
    case InstructionKind::kReadState:
    case InstructionKind::kWriteParam:
    case InstructionKind::kWriteState:
    case InstructionKind::kReadSaved:
    case InstructionKind::kWriteSaved:
      return launch_transfer(instruction, number);
    case InstructionKind::kCopy:
      return launch_copy(instruction, number);
    case InstructionKind::kForward:
    case InstructionKind::kBackward:
      return launch_block(instruction, number);
    case InstructionKind::kHeadBegin:
    case InstructionKind::kHeadScore:
    case InstructionKind::kHeadLoss:
    case InstructionKind::kHeadGradient:
    case InstructionKind::kHeadEnd:
    case InstructionKind::kHeadLogits:
      return launch_head(instruction, number);
    case InstructionKind::kGather:
    case InstructionKind::kScatter:
    case InstructionKind::kSpread:
      return launch_embedding(instruction, number);
    case InstructionKind::kAccumulate:
      return launch_accumulate(instruction, number);
    case InstructionKind::kCollect:
      return launch_collect(instruction, number);
    case InstructionKind::kUpdate:
      return launch_update(instruction, number);
    case InstructionKind::kDecode:
      return launch_decode(instruction, number);
  }
}

void ExecutorImpl::launch_transfer(const Instruction& instruction, std::uint64_t number) {
  const tiers::nvme::ExtentKey key = key_of(instruction);
  const std::span<std::byte> memory = memory_of(instruction.accesses[0]);
  tiers::nvme::IoLane& lane = io_->lane_for(instruction.lane, key);
  const bool reads = plan::is_read(instruction.kind);
  const tiers::nvme::IoDeadline deadline =
      instruction.needed_by >= 0 ? static_cast<tiers::nvme::IoDeadline>(instruction.needed_by)
      : reads                    ? tiers::nvme::kDeadlineOfReads
                                 : tiers::nvme::kDeadlineOfWrites;
  if (reads) {
    lane.read(key, memory, number, deadline, read_check_);
  } else {
    // What is spilled is counted, so that nothing old passes for what was written last.
    const std::int64_t step = key.kind == tiers::nvme::ExtentKind::kSpill ? spills_++
                              : instruction.speculative                   ? running_.speculated_step
                                                                          : running_.write_step;
    lane.write(key, memory, step, number, deadline);
  }
}

void ExecutorImpl::launch_copy(const Instruction& instruction, std::uint64_t number) {
  const std::span<std::byte> source = memory_of(instruction.accesses[0]);
  const std::span<std::byte> target = memory_of(instruction.accesses[1]);
  HEADRACE_ASSERT(source.size() == target.size(), "a copy's source and target are equally long");
  tiers::Queue& link = queue_of(instruction);
  device_->copy(link,
                instruction.queue == QueueKind::kH2d ? "copy to device" : "copy to host",
                number,
                target.data(),
                source.data(),
                source.size());
}

void ExecutorImpl::launch_block(const Instruction& instruction, std::uint64_t number) {
  Block& block = *model_.blocks[static_cast<std::size_t>(instruction.unit) - 1];
  const auto* weights = pointer<const float>(instruction, 0);
  const auto* input = pointer<const float>(instruction, 1);
  if (instruction.kind == InstructionKind::kForward) {
    const Call call{
        .queue = device_->compute(), .workspace = memory_of(instruction.accesses[4]), .id = number};
    block.forward(
        call, weights, input, pointer<float>(instruction, 2), memory_of(instruction.accesses[3]));
    return;
  }
  const Call call{
      .queue = device_->compute(), .workspace = memory_of(instruction.accesses[5]), .id = number};
  const std::span<std::byte> saved = memory_of(instruction.accesses[2]);
  if (instruction.recompute) {
    block.forward(call, weights, input, pointer<float>(instruction, 6), saved);
  }
  block.backward(call,
                 weights,
                 input,
                 saved,
                 pointer<float>(instruction, 3),
                 pointer<float>(instruction, 4),
                 instruction.first ? GradientMode::kStore : GradientMode::kAdd);
}

void ExecutorImpl::launch_head(const Instruction& instruction, std::uint64_t number) {
  Head& head = *model_.head;
  const GradientMode mode = instruction.first ? GradientMode::kStore : GradientMode::kAdd;
  // Every instruction of the head has its workspace as the last operand.
  const Call call{.queue = device_->compute(),
                  .workspace = memory_of(instruction.accesses.back()),
                  .id = number};
  Head::Rows rows{.weights = nullptr, .first_row = 0, .rows = 0};
  const bool by_rows = instruction.kind == InstructionKind::kHeadScore ||
                       instruction.kind == InstructionKind::kHeadGradient ||
                       instruction.kind == InstructionKind::kHeadLogits;
  if (by_rows) {
    const plan::RowPiece& piece = spec_.head.rows[static_cast<std::size_t>(instruction.index)];
    rows = {.weights = pointer<const float>(instruction, 0) + piece.tensor_offset,
            .first_row = piece.first_row,
            .rows = piece.rows};
  }
  switch (instruction.kind) {
    case InstructionKind::kHeadBegin:
      return head.begin(call,
                        pointer<const float>(instruction, 0),
                        pointer<const float>(instruction, 1),
                        memory_of(instruction.accesses[2]));
    case InstructionKind::kHeadScore:
      return head.score(call,
                        rows,
                        pointer<const std::int32_t>(instruction, 1),
                        memory_of(instruction.accesses[2]));
    case InstructionKind::kHeadLoss:
      return head.loss(call,
                       pointer<const std::int32_t>(instruction, 0),
                       memory_of(instruction.accesses[1]),
                       pointer<double>(instruction, 2));
    case InstructionKind::kHeadGradient:
      return head.gradient(call,
                           rows,
                           pointer<const std::int32_t>(instruction, 1),
                           running_.scale,
                           memory_of(instruction.accesses[2]),
                           instruction.index == 0,
                           pointer<float>(instruction, 3),
                           pointer<float>(instruction, 4),
                           mode);
    case InstructionKind::kHeadEnd:
      return head.end(call,
                      pointer<const float>(instruction, 0),
                      pointer<const float>(instruction, 1),
                      memory_of(instruction.accesses[2]),
                      pointer<float>(instruction, 3),
                      pointer<float>(instruction, 4),
                      mode);
    case InstructionKind::kHeadLogits:
      return head.logits(call,
                         rows,
                         {&running_.position, 1},
                         memory_of(instruction.accesses[1]),
                         pointer<float>(instruction, 2) - rows.first_row);
    default:
      HEADRACE_ASSERT(false, "an instruction of the head");
  }
}

void ExecutorImpl::launch_embedding(const Instruction& instruction, std::uint64_t number) {
  Embedding& embedding = *model_.embedding;
  const Call call{.queue = *host_queue_, .workspace = {}, .id = number};
  if (instruction.kind == InstructionKind::kGather) {
    auto* x = pointer<float>(instruction, 1);
    for (int k = 0; k < spec_.accumulate; ++k) {
      embedding.gather(call,
                       pointer<const float>(instruction, 0),
                       instruction.begin,
                       instruction.elements,
                       tokens_of(k).data(),
                       x + k * spec_.rows() * spec_.hidden,
                       instruction.first);
    }
  } else if (instruction.kind == InstructionKind::kScatter) {
    embedding.scatter(call,
                      pointer<const float>(instruction, 0),
                      tokens_of(instruction.micro_batch).data(),
                      rows_.slots(),
                      pointer<float>(instruction, 1),
                      instruction.first);
  } else {
    embedding.spread(call,
                     pointer<const float>(instruction, 0),
                     rows_.slots(),
                     instruction.begin,
                     instruction.elements,
                     pointer<const float>(instruction, 1),
                     pointer<float>(instruction, 2));
  }
}

void ExecutorImpl::launch_accumulate(const Instruction& instruction, std::uint64_t number) {
  const std::span<std::byte> incoming = memory_of(instruction.accesses[0]);
  const std::span<std::byte> accumulator = memory_of(instruction.accesses[1]);
  const tiers::MemorySpan reads(incoming.data(), incoming.size());
  const tiers::MemorySpan writes(accumulator.data(), accumulator.size());
  optim::Threads* threads = optimizer_threads_.get();
  const bool first = instruction.first;
  queue_of(instruction)
      .submit({.name = "accumulate", .reads = {&reads, 1}, .writes = {&writes, 1}, .id = number},
              [=] {
                if (first) {
                  std::memcpy(accumulator.data(), incoming.data(), accumulator.size());
                  return;
                }
                const std::size_t elements = accumulator.size() / sizeof(float);
                optim::add_micro_batch({reinterpret_cast<float*>(accumulator.data()), elements},
                                       {reinterpret_cast<const float*>(incoming.data()), elements},
                                       *threads);
              });
}

void ExecutorImpl::launch_collect(const Instruction& instruction, std::uint64_t number) {
  TileJob* job = &jobs_.at(instruction.unit, instruction.index);
  const std::span<std::byte> source = memory_of(instruction.accesses[0]);
  const std::span<std::byte> target = memory_of(instruction.accesses[1]);
  const tiers::MemorySpan reads(source.data(), source.size());
  const std::span<double> tile_sums = jobs_.block_sums_of(*job);
  const tiers::MemorySpan writes[] = {{target.data(), target.size()},
                                      {tile_sums.data(), tile_sums.size_bytes()}};
  const Dtype storage = plan_.units[static_cast<std::size_t>(instruction.unit)].gradient_storage;
  const bool rounds = plan_.grad == Dtype::kBf16;
  optim::GradientTarget kind = storage == Dtype::kBf16 ? optim::GradientTarget::kBf16
                               : rounds                ? optim::GradientTarget::kBf16InF32
                                                       : optim::GradientTarget::kF32;
  if (kind == optim::GradientTarget::kF32 && source.data() == target.data()) {
    kind = optim::GradientTarget::kNone;  // only its sums and checks are wanted
  }
  const std::size_t element_bytes = dtype_bytes(storage);
  optim::Threads* threads = optimizer_threads_.get();
  double* sums = jobs_.block_sums().data();
  queue_of(instruction)
      .submit({.name = "collect", .reads = {&reads, 1}, .writes = writes, .id = number}, [=] {
        for (Segment& segment : job->segments) {
          const auto offset = static_cast<std::size_t>(segment.tile_offset);
          const optim::GradientSpan span{
              .incoming = reinterpret_cast<const float*>(source.data()) + offset,
              .accumulated = nullptr,
              .target = kind == optim::GradientTarget::kNone
                            ? nullptr
                            : target.data() + offset * element_bytes,
              .kind = kind,
              .elements = segment.elements};
          const auto blocks = static_cast<std::size_t>(optim::count_blocks(segment.elements));
          segment.check = optim::collect_blocks(
              span, {sums + segment.first_block, blocks}, *threads, place_of(*job, segment));
        }
      });
}

void ExecutorImpl::launch_update(const Instruction& instruction, std::uint64_t number) {
  TileJob& tile = jobs_.at(instruction.unit, instruction.index);
  UpdateJob* job = instruction.speculative ? &tile.speculation : &tile.update;
  const std::span<std::byte> param = memory_of(instruction.accesses[0]);
  const std::span<std::byte> state = memory_of(instruction.accesses[1]);
  const std::span<std::byte> gradient = memory_of(instruction.accesses[2]);
  const std::span<std::byte> decoded = memory_of(instruction.accesses[3]);
  const Dtype storage = plan_.units[static_cast<std::size_t>(instruction.unit)].gradient_storage;
  job->target = {.param = param.data(),
                 .state = state.data(),
                 .tile_elements = instruction.elements,
                 .segments = job->segments,
                 .decoded = reinterpret_cast<float*>(decoded.data())};
  for (optim::TileSegment& segment : job->segments) {
    segment.gradient =
        gradient.data() + static_cast<std::size_t>(segment.offset_elements) * dtype_bytes(storage);
    segment.gradient_dtype = storage;
  }
  const tiers::MemorySpan reads[] = {{gradient.data(), gradient.size()}, update_span(*job)};
  const tiers::MemorySpan all[] = {
      {param.data(), param.size()}, {state.data(), state.size()}, {decoded.data(), decoded.size()}};
  const std::span<const tiers::MemorySpan> writes(all, decoded.empty() ? 2 : 3);
  optim::Threads* threads = optimizer_threads_.get();
  const optim::Optimizer* optimizer = optimizer_;
  queue_of(instruction)
      .submit({.name = "update", .reads = reads, .writes = writes, .id = number},
              [=] { optim::update_tile(*optimizer, job->target, job->stats, *threads); });
}

void ExecutorImpl::launch_decode(const Instruction& instruction, std::uint64_t number) {
  const std::span<std::byte> param = memory_of(instruction.accesses[0]);
  const std::span<std::byte> state = memory_of(instruction.accesses[1]);
  const std::span<std::byte> weights = memory_of(instruction.accesses[2]);
  const std::int64_t elements = instruction.elements;
  const tiers::MemorySpan reads[] = {{param.data(), param.size()}, {state.data(), state.size()}};
  const tiers::MemorySpan writes(weights.data(), weights.size());
  optim::Threads* threads = optimizer_threads_.get();
  const optim::Optimizer* optimizer = optimizer_;
  queue_of(instruction)
      .submit({.name = "decode", .reads = reads, .writes = {&writes, 1}, .id = number}, [=] {
        optim::read_weights(
            *optimizer,
            {.param = param.data(), .state = state.data(), .tile_elements = elements},
            reinterpret_cast<float*>(weights.data()),
            *threads);
      });
}

}  // namespace headrace::exec
