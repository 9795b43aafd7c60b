// gpu_kernels: what gradprobe's kernels take on the device, next to a copy and to CUB in the same run, and whether what
// they measure is right. Exit code: 0 all right, 1 a wrong result or a failure, 2 wrong usage.
#include <fmt/format.h>

#include <exception>
#include <stdexcept>

#include "benchmark.hpp"
#include "device_info.hpp"
#include "options.hpp"
#include "report.hpp"

int main(int argc, char** argv) {
  using namespace gradprobe::bench;
  try {
    Options options;
    if (const auto code = parse_options(argc, argv, options)) return *code;
    const DeviceInfo device = device_info();
    if (options.real_only && device.standin) throw std::runtime_error("the driver is the stand-in, not a real one");
    Report report(device);
    Benchmark benchmark(options, device, report);
    benchmark.time_gate();
    for (const gradprobe::Datatype type : options.types) benchmark.run(type);
    report.finish();
    if (!options.json.empty()) report.write_json(options.json);
    return report.all_right() ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_kernels: {}\n", error.what());
    return 1;
  }
}
