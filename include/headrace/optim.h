/* headrace's CPU optimizer for other programs: plain pointers, sizes and error codes. C99.
 *
 * One call updates one tensor in place and in one pass over memory: AdamW with decoupled weight
 * decay, in one of three state formats, by the order of operations that optim_cpu/adamw.hpp states
 * (HEADRACE_STATE_Q8: optim_cpu/adamw_q8.hpp). The same call with the same arguments gives the same
 * bits on every processor and with any number of threads.
 *
 * Stability: functions and structs of this header keep their meaning; new fields come at the end of
 * a struct, whose `struct_size` says what the caller knows. Threads: a context is used by one
 * thread at a time; different contexts are independent. Ownership: nothing is kept after a call
 * returns, but a context. Errors: functions return a code, HEADRACE_OK = 0; nothing is written
 * unless it is HEADRACE_OK or HEADRACE_NON_FINITE. No exception leaves this library. */
#ifndef HEADRACE_OPTIM_H
#define HEADRACE_OPTIM_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define HEADRACE_API
#else
#define HEADRACE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_OPTIM_VERSION 1

typedef enum headrace_status {
  HEADRACE_OK = 0,
  HEADRACE_INVALID_ARGUMENT = 1, /* headrace_optim_explain() says which */
  HEADRACE_OUT_OF_RESOURCES = 2, /* memory or threads */
  HEADRACE_NON_FINITE = 3        /* done, but some new weights are NaN or infinite */
} headrace_status;

typedef enum headrace_dtype { HEADRACE_F32 = 0, HEADRACE_BF16 = 1 } headrace_dtype;

/* What is kept of the optimizer's state, see optim_cpu/README.md. */
typedef enum headrace_state_format {
  HEADRACE_STATE_FP32 = 0, /* exact */
  HEADRACE_STATE_BF16 = 1, /* moments in bf16, stochastically rounded */
  HEADRACE_STATE_Q8 = 2    /* 8 bits for each moment and for the weight's second part */
} headrace_state_format;

/* Worker threads. */
typedef struct headrace_optim_context headrace_optim_context;

/* `threads` 1..1024, the caller's included. On success *context is to be destroyed by the caller.
 */
HEADRACE_API int headrace_optim_create(int threads, headrace_optim_context** context);
/* Null is allowed. */
HEADRACE_API void headrace_optim_destroy(headrace_optim_context* context);

/* What the last call on this context that returned HEADRACE_INVALID_ARGUMENT found; "" if none did.
 * Valid until the context's next call. */
HEADRACE_API const char* headrace_optim_explain(const headrace_optim_context* context);

/* The instruction set that is used on this processor: "scalar", "sse4", "avx2", "avx512" or "neon".
 */
HEADRACE_API const char* headrace_optim_target(void);

/* Bytes of the state buffer of a tensor of `elements`; 0 for arguments that make no sense. The
 * weights' buffer has elements of `weight`: the fp32 master, or with HEADRACE_BF16 the bf16
 * weights, whose missing bits are in the state. HEADRACE_STATE_Q8 has bf16 weights only. */
HEADRACE_API size_t headrace_optim_state_bytes(headrace_state_format format,
                                               headrace_dtype weight,
                                               int64_t elements);

/* AdamW's settings for one step. */
typedef struct headrace_adamw {
  size_t struct_size;  /* sizeof(headrace_adamw) */
  double lr;           /* scheduled; >= 0 */
  double beta1, beta2; /* in [0, 1) */
  double eps;          /* >= 0 */
  double weight_decay;
  int64_t step;      /* of this update, from 1 */
  double grad_scale; /* every gradient is multiplied by it: the clip factor, or 1 */
  uint64_t seed;     /* of stochastic rounding; formats BF16 and Q8 */
} headrace_adamw;

/* A whole tensor. Pointers are aligned to their elements (state: 4 bytes); they do not overlap. */
typedef struct headrace_tensor {
  size_t struct_size; /* sizeof(headrace_tensor) */
  headrace_state_format format;
  headrace_dtype weight_dtype;
  headrace_dtype grad_dtype;
  int64_t elements; /* >= 0 */
  void* weight;     /* in and out */
  void* state;      /* in and out, headrace_optim_state_bytes() long; starts as zero bytes */
  const void* grad;
  float* weight_f32; /* HEADRACE_STATE_Q8: the new weights as floats too; otherwise null */
  uint32_t id;       /* the tensor's number: gives it random bits of its own */
} headrace_tensor;

/* Results of an update. */
typedef struct headrace_update_stats {
  double sum_squares;       /* of the change without weight decay */
  int64_t non_finite_count; /* new weights that are NaN or infinite */
  int64_t first_non_finite; /* index of the first, or -1 */
} headrace_update_stats;

/* `stats` may be null. Returns HEADRACE_NON_FINITE if stats->non_finite_count > 0: check gradients
 * with headrace_grad_sum_squares() beforehand to leave such a step out. */
HEADRACE_API int headrace_adamw_update(headrace_optim_context* context,
                                       const headrace_adamw* settings,
                                       const headrace_tensor* tensor,
                                       headrace_update_stats* stats);

/* Weights as floats into the tensor's weight and state, moments zero: how training starts from an
 * fp32 checkpoint. `source` has tensor->elements floats. */
HEADRACE_API int headrace_optim_import(headrace_optim_context* context,
                                       const headrace_tensor* tensor,
                                       const float* source);

/* Weights and moments as floats; `m` and `v` may both be null. */
HEADRACE_API int headrace_optim_export(headrace_optim_context* context,
                                       const headrace_tensor* tensor,
                                       float* weights,
                                       float* m,
                                       float* v);

/* Sum of squares of a gradient and its first NaN or infinity, in one pass. For several tensors add
 * the sums in order and take the root; then grad_scale = norm > clip ? clip / (norm + 1e-6) : 1.
 * Returns HEADRACE_NON_FINITE if there is one; its index goes to *first_non_finite, otherwise -1.
 */
HEADRACE_API int headrace_grad_sum_squares(headrace_optim_context* context,
                                           const void* grad,
                                           headrace_dtype dtype,
                                           int64_t elements,
                                           double* sum_squares,
                                           int64_t* first_non_finite);

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_OPTIM_H */
