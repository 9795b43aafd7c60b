// The measurements themselves: buffers on the device, the launches that are timed, and the checks of what they found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "content.hpp"
#include "cub_norm.hpp"
#include "device_info.hpp"
#include "options.hpp"
#include "report.hpp"
#include "stopwatch.hpp"
#include "tests/kernels/rig.hpp"

namespace gradprobe::bench {

class Benchmark {
 public:
  Benchmark(const Options& options, const DeviceInfo& device, Report& report);

  // What a pass costs that finds its slot published and has next to nothing to measure.
  void time_gate();
  void run(Datatype type);

 private:
  struct Series {
    std::uint64_t count;        // elements of a bucket
    std::uint32_t ctas;         // launched
    std::uint32_t buckets = 1;  // of one launch
    std::uint32_t offset = 0;   // bytes from an address that is a multiple of 256
    gate::Pass pass = gate::kInputPass;
  };

  void time_size(Datatype type, const Content& content, std::uint64_t bytes);
  void time_group(Datatype type, const Content& content, std::uint64_t bytes);
  void time_not_a_number(Datatype type, std::uint64_t bytes);
  void check_sketch(Datatype type, const Content& content, std::uint64_t bytes);
  void check_planted(Datatype type, std::uint64_t bytes, std::uint32_t offset);

  // Launches passes over the next parts of the buffer; where `content` is given, the results are checked with it.
  Timing time_passes(test::Rig& rig, Datatype type, const Series& series, const Content* content,
                     const std::string& what);
  Timing time_copy(std::uint64_t bytes);
  Timing time_cub(Datatype type, const Content& content, std::uint64_t bytes);
  test::Measured measure_once(test::Rig& rig, Datatype type, CUdeviceptr input, std::uint64_t count, std::uint64_t key,
                              std::uint32_t ctas);

  std::vector<std::uint32_t> launched_ctas(std::uint64_t count, std::uint32_t element_bytes) const;
  std::uint64_t next_part(std::uint64_t bytes);
  void head_start();

  Options options_;
  DeviceInfo device_;
  Report& report_;
  std::vector<std::uint64_t> sizes_;  // that fit
  std::uint64_t pool_bytes_;
  std::uint64_t at_ = 0;  // where the next part of the buffer begins
  test::DeviceMemory pool_, copy_;
  test::Stream stream_;
  Stopwatch stopwatch_;
  test::Rig rig_, norm_rig_, check_rig_;
  CubNorm cub_;
};

}  // namespace gradprobe::bench
