/* headrace's optimizer in a program of one's own: AdamW with 8 bits for each moment fits y = 2 x + 1.
 * Exit code 0 if it came within 0.01 of both numbers. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "headrace/optim.h"

enum { kSlope, kOffset, kParameters };

#define POINTS 16
#define STEPS 2000

/* d/dp of the mean of (slope x + offset - y)^2 over points in [0, 1]. */
static void gradient_at(const float* parameters, float* gradient) {
  int i;
  gradient[kSlope] = gradient[kOffset] = 0.0F;
  for (i = 0; i < POINTS; ++i) {
    const float x = (float)i / (POINTS - 1);
    const float y = 2.0F * x + 1.0F;
    const float error = parameters[kSlope] * x + parameters[kOffset] - y;
    gradient[kSlope] += 2.0F * error * x / POINTS;
    gradient[kOffset] += 2.0F * error / POINTS;
  }
}

int main(void) {
  const float start[kParameters] = {0.0F, 0.0F};
  float parameters[kParameters] = {0.0F, 0.0F};
  float gradient[kParameters];
  uint16_t weight[kParameters] = {0, 0}; /* bf16; the rest of each weight is in the state */
  uint32_t state[64] = {0};
  headrace_optim_context* context = NULL;
  headrace_adamw settings = {.struct_size = sizeof(settings),
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .grad_scale = 1.0,
                             .seed = 1};
  const headrace_tensor tensor = {.struct_size = sizeof(tensor),
                                  .format = HEADRACE_STATE_Q8,
                                  .weight_dtype = HEADRACE_BF16,
                                  .grad_dtype = HEADRACE_F32,
                                  .elements = kParameters,
                                  .weight = weight,
                                  .state = state,
                                  .grad = gradient,
                                  .weight_f32 = parameters};
  int code = HEADRACE_OK;
  if (headrace_optim_state_bytes(tensor.format, tensor.weight_dtype, kParameters) > sizeof(state)) {
    fprintf(stderr, "fit_line: the state needs more room\n");
    return 1;
  }
  if (headrace_optim_create(1, &context) != HEADRACE_OK) {
    fprintf(stderr, "fit_line: no threads or no memory\n");
    return 1;
  }
  code = headrace_optim_import(context, &tensor, start);
  for (settings.step = 1; settings.step <= STEPS && code == HEADRACE_OK; ++settings.step) {
    gradient_at(parameters, gradient);
    settings.lr = 0.05 * (1.0 - (double)(settings.step - 1) / STEPS);
    code = headrace_adamw_update(context, &settings, &tensor, NULL);
  }
  if (code != HEADRACE_OK) {
    fprintf(stderr, "fit_line: code %d: %s\n", code, headrace_optim_explain(context));
  }
  headrace_optim_destroy(context);
  printf("y = %.3f x + %.3f (%s)\n", parameters[kSlope], parameters[kOffset],
         headrace_optim_target());
  return code == HEADRACE_OK && fabsf(parameters[kSlope] - 2.0F) < 0.01F &&
                 fabsf(parameters[kOffset] - 1.0F) < 0.01F
             ? 0
             : 1;
}
