#include "report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <stdexcept>

namespace gradprobe::bench {
namespace {

constexpr const char* kStandinWarning =
    "This is the stand-in driver, which runs kernels on the CPU: results are checked, times and bandwidths mean "
    "nothing.";

std::string or_dash(const std::optional<double>& value) {
  return value ? fmt::format("{:.3f}", *value) : "-";
}

}  // namespace

std::string readable_size(std::uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (unit < 3 && bytes % 1024 == 0 && bytes >= 1024) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, units[unit]);
}

Report::Report(const DeviceInfo& device) : standin_(device.standin) {
  const std::string now = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  json_ = {{"device",
            {{"name", device.name},
             {"compute_capability", device.compute_capability},
             {"driver", device.driver},
             {"multiprocessors", device.multiprocessors},
             {"clock_mhz", device.clock_mhz},
             {"l2_bytes", device.l2_bytes},
             {"memory_bytes", device.memory_bytes},
             {"times_are_real", !device.standin}}},
           {"date", now},
           {"rows", nlohmann::json::array()},
           {"notes", nlohmann::json::array()},
           {"wrong", nlohmann::json::array()}};
  fmt::print(
      "{}: compute capability {}.{}, {} multiprocessors, {} MHz, {} MiB of L2, {} MiB; driver of CUDA {}.{}; {}\n",
      device.name, device.compute_capability / 10, device.compute_capability % 10, device.multiprocessors,
      device.clock_mhz, device.l2_bytes >> 20, device.memory_bytes >> 20, device.driver / 1000,
      device.driver % 1000 / 10, now);
  if (standin_) fmt::print("{}\n", kStandinWarning);
}

void Report::heading() const {
  fmt::print("\n{:<7} {:>8} {:<26} {:>4} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}\n", "type", "size", "what", "CTAs",
             "median us", "min us", "max us", "GB/s", "of copy", "vs CUB");
}

void Report::add(const Row& row) {
  const double gigabytes =
      row.timing.median_us > 0 ? static_cast<double>(row.bytes_moved) / row.timing.median_us / 1e3 : 0;
  fmt::print("{:<7} {:>8} {:<26} {:>4} {:>10.2f} {:>10.2f} {:>10.2f} {:>8} {:>8} {:>8}\n", row.type,
             row.bytes ? readable_size(row.bytes) : "", row.what, row.ctas ? std::to_string(row.ctas) : "-",
             row.timing.median_us, row.timing.min_us, row.timing.max_us,
             row.bytes_moved ? fmt::format("{:.1f}", gigabytes) : "-", or_dash(row.of_copy), or_dash(row.of_cub_time));
  std::fflush(stdout);
  nlohmann::json one = {{"type", row.type},
                        {"bytes", row.bytes},
                        {"what", row.what},
                        {"ctas", row.ctas},
                        {"median_us", row.timing.median_us},
                        {"min_us", row.timing.min_us},
                        {"max_us", row.timing.max_us},
                        {"bytes_moved", row.bytes_moved}};
  if (row.of_copy) one["of_copy"] = *row.of_copy;
  if (row.of_cub_time) one["of_cub_time"] = *row.of_cub_time;
  json_["rows"].push_back(std::move(one));
}

void Report::note(const std::string& text) {
  fmt::print("{}\n", text);
  json_["notes"].push_back(text);
}

void Report::wrong(const std::string& text) {
  if (++wrong_ <= 50) fmt::print(stderr, "wrong: {}\n", text);
  json_["wrong"].push_back(text);
}

void Report::finish() const {
  fmt::print("\n{} results checked, {} wrong\n", checks_, wrong_);
  if (standin_) fmt::print("{}\n", kStandinWarning);
}

void Report::write_json(const std::string& file) const {
  nlohmann::json whole = json_;
  whole["checks"] = checks_;
  std::ofstream out(file);
  out << whole.dump(1) << '\n';
  if (!out.flush()) throw std::runtime_error(file + ": can't be written; give --json another file");
}

}  // namespace gradprobe::bench
