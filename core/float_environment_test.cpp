// Flush-to-zero is per thread and takes effect.
#include "core/float_environment.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace headrace {
namespace {

TEST(FloatEnvironment, FlushToZeroTakesEffectInTheThreadThatSetsIt) {
  const bool here_before = flush_to_zero_is_set();
  bool there_after = false;
  std::thread thread([&] {
    set_flush_to_zero();
    there_after = flush_to_zero_is_set();
  });
  thread.join();
  EXPECT_TRUE(there_after);
  EXPECT_FALSE(here_before);
  EXPECT_EQ(flush_to_zero_is_set(), here_before);
}

}  // namespace
}  // namespace headrace
