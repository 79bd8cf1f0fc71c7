// A hundred updates by torch.optim.AdamW (fixtures/torch_adamw.txt, with its generator) and ours on
// the same weights and gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "optim_cpu/adamw.hpp"
#include "optim_cpu/test_support.hpp"

namespace headrace::optim {
namespace {

constexpr std::size_t kElements = 256;
constexpr std::int64_t kUpdates = 100;

// An exact multiple of 1/1024 in [-1, 1].
float fraction(std::uint64_t i) {
  const std::uint64_t mixed = ((i * 2654435761U + 12345U) & 0xffffffffU) >> 16U;
  return static_cast<float>(static_cast<std::int64_t>(mixed % 2001U) - 1000) / 1024.0F;
}

struct TorchRun {
  AdamWScalars scalars;
  std::vector<double> weights;  // after kUpdates
};

std::vector<TorchRun> read_fixture() {
  std::ifstream file(HEADRACE_SOURCE_DIR "/optim_cpu/fixtures/torch_adamw.txt");
  std::vector<TorchRun> runs;
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    TorchRun run;
    text >> run.scalars.lr >> run.scalars.beta1 >> run.scalars.beta2 >> run.scalars.eps >>
        run.scalars.weight_decay;
    for (std::string value; text >> value;) {
      run.weights.push_back(std::stod(value));
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

std::vector<float> weights_after_updates(AdamWScalars scalars) {
  std::vector<float> weights;
  for (std::size_t i = 0; i < kElements; ++i) {
    weights.push_back(fraction(i) * 0.02F);
  }
  std::vector<float> m(kElements);
  std::vector<float> v(kElements);
  std::vector<float> gradient(kElements);
  for (scalars.update_count = 1; scalars.update_count <= kUpdates; ++scalars.update_count) {
    for (std::size_t i = 0; i < kElements; ++i) {
      const auto place = 1000 + 1009 * static_cast<std::uint64_t>(scalars.update_count) + i;
      gradient[i] = std::ldexp(fraction(place), -static_cast<int>(i % 12));
    }
    adamw_update({.param = weights.data(),
                  .m = m.data(),
                  .v = v.data(),
                  .gradient = gradient.data(),
                  .elements = static_cast<std::int64_t>(kElements)},
                 scalars);
  }
  return weights;
}

TEST(AdamW, PyTorchAgreesAfterAHundredUpdates) {
  const FlushToZeroScope flush_to_zero;
  const std::vector<TorchRun> runs = read_fixture();
  ASSERT_EQ(runs.size(), 3U);
  for (const TorchRun& torch : runs) {
    ASSERT_EQ(torch.weights.size(), kElements);
    const std::vector<float> ours = weights_after_updates(torch.scalars);
    double squares = 0;
    for (const double weight : torch.weights) {
      squares += weight * weight;
    }
    const double bound = 5e-6 * std::sqrt(squares / kElements);
    double largest = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(ours[i]) - torch.weights[i]));
    }
    EXPECT_LE(largest, bound) << "lr " << torch.scalars.lr;
  }
}

}  // namespace
}  // namespace headrace::optim
