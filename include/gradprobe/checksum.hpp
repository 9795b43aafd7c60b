// CRC-32C (Castagnoli), the checksum of ring files. Polynomial 0x1EDC6F41, reflected, as in RFC 3720 appendix B.4,
// whose published vectors the tests use. Table-driven, eight bytes a step; thread-safe, no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradprobe {
namespace detail {

constexpr std::array<std::array<std::uint32_t, 256>, 8> make_crc32c_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t i = 0; i < 256; i++) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; bit++) c = (c >> 1) ^ ((c & 1u) != 0 ? 0x82F63B78u : 0u);
    t[0][i] = c;
  }
  for (std::uint32_t i = 0; i < 256; i++)
    for (std::size_t k = 1; k < 8; k++) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xFFu];
  return t;
}
inline constexpr auto kCrc32cTables = make_crc32c_tables();

}  // namespace detail

// CRC-32C of `bytes` bytes at `data`; `seed` continues an earlier call's result.
inline std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t seed = 0) {
  const auto& t = detail::kCrc32cTables;
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint32_t c = ~seed;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t v;
    std::memcpy(&v, p, 8);
    v ^= c;
    c = t[7][v & 0xFF] ^ t[6][(v >> 8) & 0xFF] ^ t[5][(v >> 16) & 0xFF] ^ t[4][(v >> 24) & 0xFF] ^
        t[3][(v >> 32) & 0xFF] ^ t[2][(v >> 40) & 0xFF] ^ t[1][(v >> 48) & 0xFF] ^ t[0][v >> 56];
  }
  for (; bytes > 0; bytes--, p++) c = (c >> 8) ^ t[0][(c ^ *p) & 0xFF];
  return ~c;
}

}  // namespace gradprobe
