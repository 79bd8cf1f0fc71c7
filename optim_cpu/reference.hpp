// The optimizer's arithmetic as plain scalar loops in float: what adamw.hpp and gradient.hpp
// promise, readable, and the numbers that every instruction set must give bit for bit (in the same
// floating-point mode). Slow; used by tests and as documentation.
//
// Threads: free functions on the calling thread. Failure: none.
#pragma once

#include "optim_cpu/adamw.hpp"
#include "optim_cpu/adamw_q8.hpp"
#include "optim_cpu/decode_q8.hpp"
#include "optim_cpu/gradient.hpp"
#include "optim_cpu/update.hpp"

namespace headrace::optim {

UpdateStats adamw_reference(const AdamWSpan& span, const AdamWConstants& constants);
template <Dtype kWeight, Dtype kMoment>
void adamw_reference_blocks(const TileUpdate& tile, BlockRange range, std::span<UpdateStats> stats);

UpdateStats adamw_q8_reference(const Q8Span& span, const Q8Constants& constants);
void adamw_q8_reference_blocks(const TileUpdate& tile,
                               BlockRange range,
                               std::span<UpdateStats> stats);

void decode_q8_weights_reference(const Q8WeightSpan& span);

[[nodiscard]] BlockSum collect_block_reference(const GradientSpan& span);

}  // namespace headrace::optim
