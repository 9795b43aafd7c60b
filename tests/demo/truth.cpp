#include "truth.hpp"

#include <fmt/core.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace gradprobe::demo {
namespace {

std::ofstream create(const std::string& file) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  if (!out) throw std::runtime_error(fmt::format("--truth: {}: {}", file, std::strerror(errno)));
  return out;
}

template <class T>
T load(const void* data, int index) {
  T value;
  std::memcpy(&value, static_cast<const unsigned char*>(data) + sizeof(T) * static_cast<std::size_t>(index), sizeof(T));
  return value;
}

double value_at(BucketType type, const void* data, int index) {
  switch (type) {
    case BucketType::f32:
      return static_cast<double>(load<float>(data, index));
    case BucketType::bf16:
      return bf16_value(load<std::uint16_t>(data, index));
    case BucketType::f16:
      return f16_value(load<std::uint16_t>(data, index));
  }
  return 0;
}

}  // namespace

double bf16_value(std::uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

double f16_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  double value = 0;
  if (exponent == 31) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

TruthWriter::TruthWriter(const std::string& folder, int rank, bool buckets)
    : file_(fmt::format("{}/rank{}.jsonl", folder, rank)), lines_(create(file_)), buckets_(buckets) {
  if (buckets) bytes_ = create(fmt::format("{}/rank{}.bin", folder, rank));
}

void TruthWriter::add(std::uint64_t op, int step, BucketType type, const void* data, int count) {
  static constexpr const char* kNames[] = {"f32", "bf16", "f16"};
  long double sum_squares = 0;  // 64 bits of mantissa: its own rounding stays far below the records' 1e-6
  double max_abs = 0;
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  nlohmann::json first = nullptr;
  for (int i = 0; i < count; ++i) {
    const double value = value_at(type, data, i);
    if (std::isfinite(value)) {
      sum_squares += static_cast<long double>(value) * static_cast<long double>(value);
      max_abs = std::max(max_abs, std::abs(value));
      continue;
    }
    if (first.is_null()) first = i;
    std::isnan(value) ? ++nan : ++inf;
  }
  nlohmann::ordered_json line = {{"op", op},
                                 {"step", step},
                                 {"dtype", kNames[static_cast<int>(type)]},
                                 {"count", count},
                                 {"norm", static_cast<double>(std::sqrt(sum_squares))},
                                 {"sum_squares", static_cast<double>(sum_squares)},
                                 {"nan", nan},
                                 {"inf", inf},
                                 {"first_nonfinite", first},
                                 {"max_abs", max_abs}};
  if (count == 1) {
    const double value = value_at(type, data, 0);
    if (std::isfinite(value)) {
      line["value"] = value;
    } else {
      line["value"] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    }
  }
  if (buckets_) {
    const auto bytes = static_cast<std::uint64_t>(count) * (type == BucketType::f32 ? 4 : 2);
    line["offset"] = offset_;
    bytes_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    offset_ += bytes;
  }
  lines_ << line.dump() << '\n';
  if (!lines_.flush() || (buckets_ && !bytes_.flush())) {
    throw std::runtime_error(fmt::format("--truth: {}: {}", file_, std::strerror(errno)));
  }
}

}  // namespace gradprobe::demo
