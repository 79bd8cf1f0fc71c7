// Which instruction sets the kernels of this folder are compiled for: scalar, SSE4, AVX2, AVX-512,
// NEON. Included before any Highway header.
//
// SSSE3 adds code for machines that nobody trains on; the scalable vectors of SVE have no fixed
// size, and the kernels keep vectors in arrays.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
