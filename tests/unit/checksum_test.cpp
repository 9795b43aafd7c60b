#include <gtest/gtest.h>
#include <gradprobe/checksum.hpp>

#include <random>
#include <string>
#include <vector>

#include "synthetic_ring.hpp"

namespace gradprobe {
namespace {

// RFC 3720, appendix B.4.
TEST(Crc32c, PublishedVectors) {
  std::vector<unsigned char> data(32, 0);
  EXPECT_EQ(crc32c(data.data(), data.size()), 0x8A9136AAu);
  data.assign(32, 0xFF);
  EXPECT_EQ(crc32c(data.data(), data.size()), 0x62A8AB43u);
  for (std::size_t i = 0; i < 32; i++) data[i] = static_cast<unsigned char>(i);
  EXPECT_EQ(crc32c(data.data(), data.size()), 0x46DD794Eu);
  for (std::size_t i = 0; i < 32; i++) data[i] = static_cast<unsigned char>(31 - i);
  EXPECT_EQ(crc32c(data.data(), data.size()), 0x113FDB5Cu);
  const std::vector<unsigned char> read10 = {0x01, 0xC0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                             0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00,
                                             0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x18, 0x28, 0x00, 0x00, 0x00,
                                             0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00};
  EXPECT_EQ(crc32c(read10.data(), read10.size()), 0xD9963A56u);
}

TEST(Crc32c, EveryLengthAndSplitAgreesWithBitByBit) {
  std::mt19937 random(1);
  std::vector<unsigned char> data(100);
  for (auto& byte : data) byte = static_cast<unsigned char>(random());
  for (std::size_t length = 0; length <= data.size(); length++) {
    const std::uint32_t expected = test::slow_crc32c(data.data(), length);
    EXPECT_EQ(crc32c(data.data(), length), expected);
    for (std::size_t split = 0; split <= length; split += 7) {
      EXPECT_EQ(crc32c(data.data() + split, length - split, crc32c(data.data(), split)), expected);
    }
  }
}

}  // namespace
}  // namespace gradprobe
