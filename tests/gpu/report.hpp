// The benchmark's table, its JSON, and the count of wrong results.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "device_info.hpp"
#include "stopwatch.hpp"

namespace gradprobe::bench {

struct Row {
  std::string type;  // of the elements; empty: none
  std::uint64_t bytes = 0;
  std::string what;
  std::uint32_t ctas = 0;  // launched; 0: not ours
  Timing timing;
  std::uint64_t bytes_moved = 0;      // read and written
  std::optional<double> of_copy;      // bytes per time, as a fraction of the copy's (which counts both directions)
  std::optional<double> of_cub_time;  // time, as a multiple of CUB's
};

class Report {
 public:
  explicit Report(const DeviceInfo& device);

  void heading() const;
  void add(const Row& row);
  void note(const std::string& text);
  // A result that is wrong: the program will fail.
  void wrong(const std::string& text);
  void checked() { ++checks_; }

  bool all_right() const { return wrong_ == 0; }
  void finish() const;
  // Throws std::runtime_error if the file can't be written.
  void write_json(const std::string& file) const;

 private:
  bool standin_;
  nlohmann::json json_;
  std::uint64_t checks_ = 0, wrong_ = 0;
};

std::string readable_size(std::uint64_t bytes);

}  // namespace gradprobe::bench
