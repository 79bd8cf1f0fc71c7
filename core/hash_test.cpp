// Facts about hashes and ids that files on disk depend on.
#include "core/hash.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

TEST(Hash, EqualsThePublishedXxh3Values) {
  EXPECT_EQ(hash_text(""), 0x2D06800538D394C2ULL);  // XXH3_64bits of no input, seed 0
  EXPECT_EQ(hash_hex(hash_text("")), "2d06800538d394c2");
}

TEST(Hash, AStreamHashesAsItsWholeHoweverItIsSplit) {
  std::string text(5000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 131U);
  }
  const std::uint64_t whole = hash_text(text);
  for (const std::size_t part : {1U, 7U, 64U, 255U, 256U, 4999U}) {
    Hasher hasher;
    for (std::size_t at = 0; at < text.size(); at += part) {
      hasher.update(std::string_view(text).substr(at, part));
    }
    EXPECT_EQ(hasher.digest(), whole) << "parts of " << part;
  }
}

TEST(Hash, OneFlippedBitChangesIt) {
  std::vector<std::byte> bytes(4096);
  const std::uint64_t before = hash_bytes(bytes);
  bytes[4000] ^= std::byte{1};
  EXPECT_NE(hash_bytes(bytes), before);
}

TEST(Id128, RandomIdsDifferAndReadBack) {
  const Id128 first = random_id().value();
  const Id128 second = random_id().value();
  EXPECT_NE(first, second);
  EXPECT_EQ(first.hex().size(), 32U);
  EXPECT_EQ(Id128::from_hex(first.hex()), first);
}

TEST(Id128, OtherSpellingsAreRefused) {
  EXPECT_FALSE(Id128::from_hex(""));
  EXPECT_FALSE(Id128::from_hex("00"));
  EXPECT_FALSE(Id128::from_hex("0000000000000000000000000000000g"));
  EXPECT_FALSE(Id128::from_hex("ABCDEF00000000000000000000000000"));
  EXPECT_FALSE(Id128::from_hex("+0000000000000000000000000000000"));
  EXPECT_TRUE(Id128::from_hex("abcdef00000000000000000000000000"));
}

}  // namespace
}  // namespace headrace
