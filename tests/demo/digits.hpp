// The data set: tests/data/digits (its README names source and licence).
#pragma once

#include <string>
#include <vector>

namespace gradprobe::demo {

struct Digits {
  static constexpr int kPixels = 64;
  static constexpr int kClasses = 10;
  static constexpr int kMaxPixel = 16;

  std::vector<unsigned char> images;  // kPixels each, 0 ... kMaxPixel
  std::vector<unsigned char> labels;  // 0 ... 9

  int count() const { return static_cast<int>(labels.size()); }
};

// Reads lines of 64 pixels and a label. Throws std::runtime_error that names the file, the line and what is wrong.
Digits read_digits(const std::string& file);

}  // namespace gradprobe::demo
