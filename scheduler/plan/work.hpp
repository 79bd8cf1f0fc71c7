// What a pass through a unit computes, as numbers that can be priced: products by their shape,
// attention, and operations that go over elements.
//
// Pure data. Threads: any. Failure: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::plan {

// As kernels::WeightLayout.
enum class WeightLayout : std::uint8_t { kOutIn, kInOut };
inline constexpr std::size_t kWeightLayouts = 2;

// y = x W; d(x) = d(y) W^T; d(W) = x^T d(y).
enum class ProductPass : std::uint8_t { kForward, kInput, kWeight };
inline constexpr std::size_t kProductPasses = 3;

struct Product {
  ProductPass pass = ProductPass::kForward;
  WeightLayout layout = WeightLayout::kOutIn;
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;

  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(inputs) *
           static_cast<double>(outputs);
  }
};

// Operations that go over the elements of an activation.
enum class ElementOperation : std::uint8_t {
  kAdd,
  kNorm,
  kNormBackward,
  kGelu,
  kGeluBackward,
  kSwiglu,
  kSwigluBackward,
  kRotate,     // of rotary positions
  kColumnSum,  // gradients of biases
  kSoftmax,    // logits of the head
};
inline constexpr std::size_t kElementOperations = 10;

struct Work {
  std::vector<Product> products = {};
  std::int64_t sequence = 0;            // tokens, of attention
  double attention_forward_flops = 0;   // of the scores that are not masked
  double attention_backward_flops = 0;  // the same
  std::array<double, kElementOperations> elements{};
  int operations = 0;  // kernels

  void add(const Product& product) {
    products.push_back(product);
    ++operations;
  }

  void add(ElementOperation operation, double count) {
    elements[static_cast<std::size_t>(operation)] += count;
    ++operations;
  }
};

}  // namespace headrace::plan
