/* include/headrace/optim.h as a C program sees it: every function in every format, and wrong
 * arguments. Exit code 0 if all is as promised. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "headrace/optim.h"

#define ELEMENTS 1000

static int failures = 0;

static void expect(int fact, const char* what) {
  if (!fact) {
    (void)fprintf(stderr, "not so: %s\n", what);
    ++failures;
  }
}

#define EXPECT(fact) expect((fact), #fact)

static headrace_adamw usual_settings(void) {
  headrace_adamw settings = {.struct_size = sizeof(settings),
                             .lr = 1e-2,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .step = 1,
                             .grad_scale = 1.0,
                             .seed = 7};
  return settings;
}

/* From zero moments the first step moves every weight by lr, against the gradient's sign. */
static void updates_move_weights(headrace_optim_context* context,
                                 headrace_state_format format,
                                 headrace_dtype weight_dtype) {
  static float source[ELEMENTS], grad[ELEMENTS], weights[ELEMENTS], m[ELEMENTS], v[ELEMENTS];
  const size_t state_bytes = headrace_optim_state_bytes(format, weight_dtype, ELEMENTS);
  headrace_tensor tensor = {.struct_size = sizeof(tensor),
                            .format = format,
                            .weight_dtype = weight_dtype,
                            .grad_dtype = HEADRACE_F32,
                            .elements = ELEMENTS};
  headrace_adamw settings = usual_settings();
  headrace_update_stats stats;
  int i;
  if (state_bytes == 0) {
    expect(0, "a state has bytes");
    return;
  }
  tensor.weight = calloc(ELEMENTS, 4);
  tensor.state = calloc(state_bytes, 1);
  tensor.grad = grad;
  for (i = 0; i < ELEMENTS; ++i) {
    source[i] = (float)i / ELEMENTS + 0.001F;
    grad[i] = i % 2 == 0 ? 0.5F : -0.5F;
  }
  EXPECT(headrace_optim_import(context, &tensor, source) == HEADRACE_OK);
  EXPECT(headrace_adamw_update(context, &settings, &tensor, &stats) == HEADRACE_OK);
  EXPECT(fabs(stats.sum_squares / (ELEMENTS * 1e-4) - 1.0) < 1e-3);
  EXPECT(stats.first_non_finite == -1);
  EXPECT(headrace_optim_export(context, &tensor, weights, m, v) == HEADRACE_OK);
  for (i = 0; i < ELEMENTS; ++i) {
    const float expected = source[i] + (i % 2 == 0 ? -1e-2F : 1e-2F);
    if (fabsf(weights[i] - expected) > 3e-5F || fabsf(m[i] - grad[i] * 0.1F) > 1e-3F) {
      expect(0, "weights and moments after the first step");
      break;
    }
  }
  settings.step = 2;
  grad[17] = NAN;
  EXPECT(headrace_adamw_update(context, &settings, &tensor, &stats) == HEADRACE_NON_FINITE);
  EXPECT(stats.non_finite_count == 1 && stats.first_non_finite == 17);
  free(tensor.weight);
  free(tensor.state);
}

static void sums_find_what_is_not_finite(headrace_optim_context* context) {
  static unsigned short grad[ELEMENTS];
  double sum = 0;
  int64_t first = 0;
  int i;
  for (i = 0; i < ELEMENTS; ++i) {
    grad[i] = 0x4000; /* 2 */
  }
  EXPECT(headrace_grad_sum_squares(context, grad, HEADRACE_BF16, ELEMENTS, &sum, &first) ==
         HEADRACE_OK);
  EXPECT(sum == 4.0 * ELEMENTS && first == -1);
  grad[999] = 0x7f80; /* infinity */
  EXPECT(headrace_grad_sum_squares(context, grad, HEADRACE_BF16, ELEMENTS, &sum, &first) ==
         HEADRACE_NON_FINITE);
  EXPECT(first == 999);
}

static void wrong_arguments_are_said(headrace_optim_context* context) {
  headrace_tensor tensor = {.struct_size = sizeof(tensor),
                            .format = HEADRACE_STATE_Q8,
                            .weight_dtype = HEADRACE_F32,
                            .grad_dtype = HEADRACE_F32,
                            .elements = 5};
  headrace_adamw settings = usual_settings();
  headrace_optim_context* other = NULL;
  EXPECT(headrace_optim_create(0, &other) == HEADRACE_INVALID_ARGUMENT);
  EXPECT(headrace_optim_create(1, NULL) == HEADRACE_INVALID_ARGUMENT);
  EXPECT(headrace_adamw_update(NULL, &settings, &tensor, NULL) == HEADRACE_INVALID_ARGUMENT);
  EXPECT(headrace_adamw_update(context, &settings, &tensor, NULL) == HEADRACE_INVALID_ARGUMENT);
  EXPECT(strstr(headrace_optim_explain(context), "format") != NULL);
  tensor.format = HEADRACE_STATE_FP32;
  EXPECT(headrace_adamw_update(context, &settings, &tensor, NULL) == HEADRACE_INVALID_ARGUMENT);
  EXPECT(strstr(headrace_optim_explain(context), "null") != NULL);
  settings.step = 0;
  EXPECT(headrace_adamw_update(context, &settings, &tensor, NULL) == HEADRACE_INVALID_ARGUMENT);
  EXPECT(strstr(headrace_optim_explain(context), "step") != NULL);
  settings = usual_settings();
  settings.lr = -1e-3;
  EXPECT(headrace_adamw_update(context, &settings, &tensor, NULL) == HEADRACE_INVALID_ARGUMENT);
  EXPECT(strstr(headrace_optim_explain(context), "negative") != NULL);
  settings = usual_settings();
  settings.eps = -1e-8;
  EXPECT(headrace_adamw_update(context, &settings, &tensor, NULL) == HEADRACE_INVALID_ARGUMENT);
  EXPECT(strstr(headrace_optim_explain(context), "negative") != NULL);
  settings = usual_settings();
  tensor.elements = 0; /* nothing to do is not an error */
  EXPECT(headrace_adamw_update(context, &settings, &tensor, NULL) == HEADRACE_OK);
  EXPECT(headrace_optim_state_bytes(HEADRACE_STATE_Q8, HEADRACE_F32, 32) == 0);
  EXPECT(headrace_optim_state_bytes(HEADRACE_STATE_Q8, HEADRACE_BF16, 65) == 416);
  EXPECT(headrace_optim_state_bytes(HEADRACE_STATE_FP32, HEADRACE_BF16, 2) == 20);
  EXPECT(headrace_optim_state_bytes(HEADRACE_STATE_FP32, HEADRACE_F32, -1) == 0);
}

int main(void) {
  headrace_optim_context* context = NULL;
  EXPECT(headrace_optim_create(2, &context) == HEADRACE_OK);
  EXPECT(strlen(headrace_optim_target()) > 0);
  updates_move_weights(context, HEADRACE_STATE_FP32, HEADRACE_F32);
  updates_move_weights(context, HEADRACE_STATE_FP32, HEADRACE_BF16);
  updates_move_weights(context, HEADRACE_STATE_BF16, HEADRACE_F32);
  updates_move_weights(context, HEADRACE_STATE_BF16, HEADRACE_BF16);
  updates_move_weights(context, HEADRACE_STATE_Q8, HEADRACE_BF16);
  sums_find_what_is_not_finite(context);
  wrong_arguments_are_said(context);
  headrace_optim_destroy(context);
  headrace_optim_destroy(NULL);
  return failures == 0 ? 0 : 1;
}
