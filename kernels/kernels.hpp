// Transformer operations: one header of signatures for every device (kernels/cpu implements it; a
// CUDA implementation takes the same arguments).
//
// Every kernel is `void name(const Context&, const NameArgs&)`. It puts one operation on
// context.queue, declares the spans it reads and writes, and returns; nothing is allocated by it
// except the queue's own slot. Scratch memory is context.workspace only: at least
// name_workspace_bytes(shape, threads) bytes (kernels without such a function need none), its
// contents worthless before and after. Pointers must stay valid until the operation has finished.
//
// Shapes are row-major; N = batch * sequence rows, C columns. Any size may be 0 or odd, and no
// pointer needs more alignment than its element, except the workspace (kWorkspaceAlignmentBytes).
// The CPU accepts fp32 tensors only. Misuse (null pointers, wrong dtypes, a small workspace) is a
// programmer's error and asserts at the call; a library's failure raises the queue's fault.
//
// Numbers: results depend on the arguments, the machine and Context::threads only through GEMM (a
// constant of the run); everything that is not a GEMM gives the same bits for any thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"
#include "tiers/queue.hpp"

namespace headrace::kernels {

// ---- what every kernel takes -------------------------------------------------------------------

inline constexpr std::size_t kWorkspaceAlignmentBytes = 64;

// Where and with what a kernel runs. `threads` is the OpenMP team of a compute queue, or the most
// threads that a host operation (gather_rows, scatter_add_rows) may take from oneTBB.
struct Context {
  tiers::Queue& queue;
  std::span<std::byte> workspace = {};
  int threads = 1;
  std::uint64_t id = 0;  // for traces and race reports
};

// A dense array. `data` may be null only where a parameter says that it is optional.
struct ConstTensor {
  const void* data = nullptr;
  Dtype dtype = Dtype::kF32;
};

struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;

  // NOLINTNEXTLINE(google-explicit-constructor): what is written may be read
  operator ConstTensor() const { return {data, dtype}; }
};

// A matrix whose rows begin `stride` elements apart (stride >= the width that the kernel uses).
struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
  Dtype dtype = Dtype::kF32;
};

struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
  Dtype dtype = Dtype::kF32;

  // NOLINTNEXTLINE(google-explicit-constructor): what is written may be read
  operator ConstRows() const { return {data, stride, dtype}; }
};

// Gradients of parameters (always fp32). The first micro-batch of a step stores; later ones are
// computed in full, in scratch, by the same calls, and then added in fp32. So kStore followed by
// kAdd equals two kStores added by hand, bit for bit.
enum class GradientMode : std::uint8_t { kStore, kAdd };

// Largest piece of a weight gradient that scratch holds at once (16 MiB). A constant of the run.
inline constexpr std::int64_t kWeightTileElements = std::int64_t{4} << 20;

// ---- linear ------------------------------------------------------------------------------------

enum class WeightLayout : std::uint8_t {
  kOutIn,  // nn.Linear: weight[outputs, inputs], y = x W^T
  kInOut,  // GPT-2's Conv1D: weight[inputs, outputs], y = x W
};

struct LinearShape {
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  WeightLayout layout = WeightLayout::kOutIn;
  bool bias = false;
};

// y[rows, outputs] = x[rows, inputs] W (+ bias[outputs] if shape.bias).
struct LinearArgs {
  LinearShape shape = {};
  ConstTensor x = {};
  ConstTensor weight = {};
  ConstTensor bias = {};  // null unless shape.bias
  Tensor y = {};
};

void linear(const Context& context, const LinearArgs& args);

// dx[rows, inputs] = dy W^T, or += with `accumulate` (projections that share their input).
struct LinearBackwardInputArgs {
  LinearShape shape = {};
  ConstTensor dy = {};
  ConstTensor weight = {};
  Tensor dx = {};
  bool accumulate = false;
};

void linear_backward_input(const Context& context, const LinearBackwardInputArgs& args);

// dweight (in shape.layout) = x^T dy by the gradient rule, cut in row ranges of at most
// kWeightTileElements.
struct LinearBackwardWeightArgs {
  LinearShape shape = {};
  ConstTensor x = {};
  ConstTensor dy = {};
  float* dweight = nullptr;
  GradientMode mode = GradientMode::kStore;
};

void linear_backward_weight(const Context& context, const LinearBackwardWeightArgs& args);

// dbias[outputs] = sum of dy over rows, by the gradient rule. No workspace.
struct LinearBackwardBiasArgs {
  std::int64_t rows = 0;
  std::int64_t outputs = 0;
  ConstTensor dy = {};
  float* dbias = nullptr;
  GradientMode mode = GradientMode::kStore;
};

void linear_backward_bias(const Context& context, const LinearBackwardBiasArgs& args);

// Asking for the workspace of a GEMM also generates and caches its code for this shape and team
// size, so that the step path only executes it. (A shape that was never asked for is prepared at
// its first use.) gemms_prepared counts the shapes prepared so far: it must not grow after the
// first step. Callable from any thread that is not oneTBB's.
[[nodiscard]] std::size_t linear_workspace_bytes(const LinearShape& shape, int threads);
[[nodiscard]] std::size_t linear_backward_input_workspace_bytes(const LinearShape& shape,
                                                                int threads);
[[nodiscard]] std::size_t linear_backward_weight_workspace_bytes(const LinearShape& shape,
                                                                 int threads);
[[nodiscard]] std::uint64_t gemms_prepared();

// ---- normalisation -----------------------------------------------------------------------------

struct NormShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// y = (x - mean) * rstd * gain + bias, rstd = 1 / sqrt(var + eps); mean[rows], rstd[rows] are
// saved.
struct LayerNormArgs {
  NormShape shape = {};
  double eps = 1e-5;
  ConstTensor x = {};
  ConstTensor gain = {};
  ConstTensor bias = {};
  Tensor y = {};  // may be x
  float* mean = nullptr;
  float* rstd = nullptr;
};

void layer_norm(const Context& context, const LayerNormArgs& args);

struct LayerNormBackwardArgs {
  NormShape shape = {};
  ConstTensor dy = {};
  ConstTensor x = {};  // the forward's input
  ConstTensor gain = {};
  const float* mean = nullptr;
  const float* rstd = nullptr;
  Tensor dx = {};           // may be dy (without accumulate)
  bool accumulate = false;  // dx += (the residual stream's gradient is already there)
  float* dgain = nullptr;   // null: not wanted (frozen)
  float* dbias = nullptr;   // null: not wanted
  GradientMode mode = GradientMode::kStore;
};

void layer_norm_backward(const Context& context, const LayerNormBackwardArgs& args);
[[nodiscard]] std::size_t layer_norm_backward_workspace_bytes(const NormShape& shape, int threads);

// y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps); rstd[rows] is saved.
struct RmsNormArgs {
  NormShape shape = {};
  double eps = 1e-5;
  ConstTensor x = {};
  ConstTensor gain = {};
  Tensor y = {};  // may be x
  float* rstd = nullptr;
};

void rms_norm(const Context& context, const RmsNormArgs& args);

struct RmsNormBackwardArgs {
  NormShape shape = {};
  ConstTensor dy = {};
  ConstTensor x = {};
  ConstTensor gain = {};
  const float* rstd = nullptr;
  Tensor dx = {};  // may be dy (without accumulate)
  bool accumulate = false;
  float* dgain = nullptr;  // null: not wanted
  GradientMode mode = GradientMode::kStore;
};

void rms_norm_backward(const Context& context, const RmsNormBackwardArgs& args);
[[nodiscard]] std::size_t rms_norm_backward_workspace_bytes(const NormShape& shape, int threads);

// ---- element by element (outputs may be one of the inputs)
// ---------------------------------------

// y = a + b
struct AddArgs {
  std::int64_t elements = 0;
  ConstTensor a = {};
  ConstTensor b = {};
  Tensor y = {};
};

void add(const Context& context, const AddArgs& args);

// y = x
struct CopyArgs {
  std::int64_t elements = 0;
  ConstTensor x = {};
  Tensor y = {};  // must not overlap x
};

void copy(const Context& context, const CopyArgs& args);

// x = 0
struct ZeroArgs {
  std::int64_t elements = 0;
  Tensor x = {};
};

void zero(const Context& context, const ZeroArgs& args);

// y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))   (Hendrycks and Gimpel 2016, as GPT-2)
struct GeluArgs {
  std::int64_t elements = 0;
  ConstTensor x = {};
  Tensor y = {};
};

void gelu(const Context& context, const GeluArgs& args);

struct GeluBackwardArgs {
  std::int64_t elements = 0;
  ConstTensor x = {};
  ConstTensor dy = {};
  Tensor dx = {};
};

void gelu_backward(const Context& context, const GeluBackwardArgs& args);

// y = gate * sigmoid(gate) * up   (Shazeer 2020)
struct SwigluArgs {
  std::int64_t elements = 0;
  ConstTensor gate = {};
  ConstTensor up = {};
  Tensor y = {};
};

void swiglu(const Context& context, const SwigluArgs& args);

struct SwigluBackwardArgs {
  std::int64_t elements = 0;
  ConstTensor gate = {};
  ConstTensor up = {};
  ConstTensor dy = {};
  Tensor dgate = {};
  Tensor dup = {};
};

void swiglu_backward(const Context& context, const SwigluBackwardArgs& args);

// ---- rotary positions
// ----------------------------------------------------------------------------

struct RopeTable {
  std::int64_t positions = 0;
  std::span<const double> radians = {};  // by which each pair turns from one position to the next
  double amplitude = 1.0;
};

// Fills cosine and sine, [positions, pairs] each, on the calling thread: amplitude times those of
// position * radians, computed in double, rounded once to float.
void rope_table(const RopeTable& table, std::span<float> cosine, std::span<float> sine);

// Rotates, in place, elements j and j + head_dim/2 of each head by the angle of the row's position
// (row n is at position n % sequence). Su et al. 2021, with Hugging Face's pairs. `inverse` rotates
// back, without undoing an amplitude: the backward pass.
struct RopeArgs {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;  // even
  Rows x = {};                // [batch * sequence, heads * head_dim]
  const float* cosine = nullptr;
  const float* sine = nullptr;
  bool inverse = false;
};

void rope(const Context& context, const RopeArgs& args);

// ---- attention
// -----------------------------------------------------------------------------------

inline constexpr std::int64_t kAttentionHeadDimMax = 256;

struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // divides heads; head h uses kv head h / (heads / kv_heads)
  std::int64_t head_dim = 0;  // 1 .. kAttentionHeadDimMax
  std::int64_t window = 0;    // keys that a query sees, its own the last; 0: all up to its own
};

// out = softmax(scale * q k^T, causal and within the window) v per head, by tiles with an online
// softmax (Dao 2023): no T x T array exists. q and out are [N, heads * head_dim], k and v [N,
// kv_heads * head_dim], each with its own stride, so that a packed [N, 3C] is three views.
// lse[batch, heads, sequence] is saved.
struct AttentionArgs {
  AttentionShape shape = {};
  double scale = 1.0;  // usually 1 / sqrt(head_dim)
  ConstRows q = {};
  ConstRows k = {};
  ConstRows v = {};
  Rows out = {};
  float* lse = nullptr;
};

void attention(const Context& context, const AttentionArgs& args);
[[nodiscard]] std::size_t attention_workspace_bytes(const AttentionShape& shape, int threads);

// Scores are recomputed tile by tile. dq, dk and dv are stored (not added to) and must not overlap
// the inputs; dk and dv sum the heads of a group in ascending order.
struct AttentionBackwardArgs {
  AttentionShape shape = {};
  double scale = 1.0;
  ConstRows q = {};
  ConstRows k = {};
  ConstRows v = {};
  ConstRows out = {};
  ConstRows dout = {};
  const float* lse = nullptr;
  Rows dq = {};
  Rows dk = {};
  Rows dv = {};
};

void attention_backward(const Context& context, const AttentionBackwardArgs& args);
[[nodiscard]] std::size_t attention_backward_workspace_bytes(const AttentionShape& shape,
                                                             int threads);

// ---- head: softmax cross-entropy over a vocabulary that arrives in pieces
// ------------------------
//
// The matrix W[vocab, columns] is worked through in chunks of rows_per_chunk rows (a constant of
// the run); logits exist for one chunk at a time. A piece is a range of rows that is resident
// together; it begins at a multiple of rows_per_chunk and ends at one, or at vocab: so the
// partition in pieces never shows in the numbers. Per micro-batch: head_score for ascending pieces,
// head_loss, head_gradient for ascending pieces.

inline constexpr std::int32_t kIgnoreTarget = -1;  // a target that contributes nothing

struct HeadShape {
  std::int64_t rows = 0;     // tokens of the micro-batch
  std::int64_t columns = 0;  // hidden size
  std::int64_t vocab = 0;
  std::int64_t rows_per_chunk = 0;
};

struct HeadPiece {
  std::int64_t first_row = 0;
  std::int64_t row_count = 0;
  ConstTensor weight = {};  // points at row first_row
};

// state: 3 * rows floats. While scoring: running maximum, running sum, target's logit of each
// token; after head_loss the first `rows` floats are the log-sum-exp.
[[nodiscard]] constexpr std::size_t head_state_bytes(std::int64_t rows) {
  return 3 * static_cast<std::size_t>(rows) * sizeof(float);
}

// The piece at row 0 begins the state.
struct HeadScoreArgs {
  HeadShape shape = {};
  HeadPiece piece = {};
  ConstTensor h = {};                     // [rows, columns], after the final norm
  const std::int32_t* targets = nullptr;  // [rows], in [0, vocab) or kIgnoreTarget
  float* state = nullptr;
};

void head_score(const Context& context, const HeadScoreArgs& args);

struct HeadLossArgs {
  std::int64_t rows = 0;
  const std::int32_t* targets = nullptr;
  float* state = nullptr;
  float* token_loss = nullptr;  // [rows], 0 where ignored; null: not wanted
  double* loss_sum = nullptr;   // sum over the micro-batch, ascending, in double; not divided
};

void head_loss(const Context& context, const HeadLossArgs& args);

// dlogits = (softmax - onehot) * scale. dh is stored by the piece at row 0 and added to by the
// others.
struct HeadGradientArgs {
  HeadShape shape = {};
  HeadPiece piece = {};
  ConstTensor h = {};
  const std::int32_t* targets = nullptr;
  const float* state = nullptr;  // as head_loss leaves it
  float scale = 1.0F;            // 1 / (unmasked targets of the whole step)
  Tensor dh = {};
  float* dweight = nullptr;  // [row_count, columns], this piece's rows; null: not wanted (frozen)
  GradientMode mode = GradientMode::kStore;
};

void head_gradient(const Context& context, const HeadGradientArgs& args);

// logits[selected_count, vocab] of chosen rows of h, for one piece (columns first_row ..
// +row_count).
struct HeadLogitsArgs {
  HeadShape shape = {};
  HeadPiece piece = {};
  ConstTensor h = {};
  std::int64_t selected_count = 0;
  const std::int32_t* selected = nullptr;  // rows of h
  float* logits = nullptr;                 // row stride vocab
};

void head_logits(const Context& context, const HeadLogitsArgs& args);

[[nodiscard]] std::size_t head_score_workspace_bytes(const HeadShape& shape, int threads);
[[nodiscard]] std::size_t head_gradient_workspace_bytes(const HeadShape& shape, int threads);
[[nodiscard]] std::size_t head_logits_workspace_bytes(const HeadShape& shape,
                                                      std::int64_t selected_count,
                                                      int threads);

// ---- embedding: host operations (any host queue; oneTBB inside when threads > 1, never OpenMP)
// ----

// A flat element range of a table, as a storage tile brings it; rows may straddle ranges.
struct TableRange {
  std::int64_t begin = 0;  // in elements from the table's first
  std::int64_t end = 0;
  ConstTensor data = {};  // points at element `begin`
};

// x[n, :] = table[index[n], :], restricted to the elements that lie in the range; += with
// `accumulate`.
struct GatherRowsArgs {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  TableRange table = {};
  const std::int32_t* index = nullptr;  // [rows], >= 0
  Tensor x = {};                        // [rows, columns]
  bool accumulate = false;
};

void gather_rows(const Context& context, const GatherRowsArgs& args);

// Sums of a micro-batch: sum[s, :] = sum of dx[n, :] over the n with slot[n] == s, ascending n;
// then accumulators[s, :] = sum (kStore; 0 for an untouched slot) or += sum (kAdd; touched slots
// only).
struct ScatterAddRowsShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t slots = 0;
};

struct ScatterAddRowsArgs {
  ScatterAddRowsShape shape = {};
  ConstTensor dx = {};                 // [rows, columns]
  const std::int32_t* slot = nullptr;  // [rows], in [0, slots) or -1 (contributes nothing)
  float* accumulators = nullptr;       // [slots, columns]
  GradientMode mode = GradientMode::kAdd;
};

void scatter_add_rows(const Context& context, const ScatterAddRowsArgs& args);
[[nodiscard]] std::size_t scatter_add_rows_workspace_bytes(const ScatterAddRowsShape& shape,
                                                           int threads);

}  // namespace headrace::kernels
