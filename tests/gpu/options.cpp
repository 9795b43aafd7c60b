#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "tests/kernels/formats.hpp"

namespace gradprobe::bench {

std::optional<int> parse_options(int argc, char** argv, Options& options) {
  options.sizes = {64ull << 10,  256ull << 10, 1ull << 20, 4ull << 20, 25ull << 20,
                   100ull << 20, 256ull << 20, 1ull << 30, 4ull << 30};
  options.types.assign(std::begin(test::kTypes), std::end(test::kTypes));
  std::map<std::string, Datatype> names;
  for (const Datatype type : test::kTypes) names.emplace(name(type), type);

  CLI::App app(
      "Times gradprobe's kernels on the device, next to a copy and to CUB's sum of squares over the same bytes in the "
      "same run, and checks what they measure.",
      "gpu_kernels");
  app.add_option("--sizes", options.sizes, "Bytes of the buckets, with suffixes K, M, G of 1024 [64K ... 4G]")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{4096}, std::uint64_t{1} << 40))
      ->delimiter(',')
      ->option_text("SIZE,...");
  app.add_option("--types", options.types, "Datatypes [all]")
      ->transform(CLI::CheckedTransformer(names))
      ->delimiter(',')
      ->option_text("f64,f32,f16,bf16,f8e4m3,f8e5m2");
  app.add_option("--ctas", options.caps, "CTAs that a pass may use [16,32,64,multiprocessors,256]")
      ->check(CLI::Range(1, 256))
      ->delimiter(',')
      ->option_text("N,...");
  app.add_option("--sketch", options.sketch_floats, "Floats of the sketch [1024]")
      ->check(CLI::IsMember({256, 512, 1024, 2048, 4096}))
      ->option_text("K");
  app.add_option("--repeats", options.repeats, "Launches of which the median is told [20]")
      ->check(CLI::Range(1u, kMaxRepeats))
      ->option_text("N");
  app.add_option("--json", options.json, "File for all figures as JSON")->option_text("FILE");
  app.add_flag("--real-only", options.real_only, "Fail where the driver is the stand-in");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::sort(options.sizes.begin(), options.sizes.end());
  std::sort(options.caps.begin(), options.caps.end());
  for (std::uint64_t& size : options.sizes) size = size / 256 * 256;
  return std::nullopt;
}

}  // namespace gradprobe::bench
