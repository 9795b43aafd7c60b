#include "digits.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace gradprobe::demo {

Digits read_digits(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(fmt::format("{}: {}", file, std::strerror(errno)));
  Digits digits;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const char* at = line.data();
    const char* end = at + line.size();
    for (int column = 0; column <= Digits::kPixels; ++column) {
      const bool is_label = column == Digits::kPixels;
      int value = -1;
      const auto [next, error] = std::from_chars(at, end, value);
      const bool separated = is_label ? next == end : next != end && *next == ',';
      const int top = is_label ? Digits::kClasses - 1 : Digits::kMaxPixel;
      if (error != std::errc{} || !separated || value < 0 || value > top) {
        throw std::runtime_error(
            fmt::format("{}: line {}: expected {} numbers from 0 to {} and a digit, separated by commas", file, number,
                        Digits::kPixels, Digits::kMaxPixel));
      }
      (is_label ? digits.labels : digits.images).push_back(static_cast<unsigned char>(value));
      at = is_label ? next : next + 1;
    }
  }
  if (digits.labels.empty()) throw std::runtime_error(fmt::format("{}: no images in it", file));
  return digits;
}

}  // namespace gradprobe::demo
