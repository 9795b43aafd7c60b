#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <vector>

#include "digits.hpp"

namespace gradprobe::demo {
namespace {

const std::map<std::string, Setting> kSettings = {
    {"s1-1", Setting::same}, {"s1-2", Setting::own_shuffle}, {"s1-3", Setting::own_seeds}};
const std::map<std::string, BucketType> kTypes = {
    {"f32", BucketType::f32}, {"bf16", BucketType::bf16}, {"f16", BucketType::f16}};

std::string check_fault(const char* what, const Fault& fault, const Options& options) {
  if (fault.rank < 0) return {};
  if (options.ranks != 0 && fault.rank >= options.ranks) {
    return std::string("--") + what + "-rank: there are only ranks 0 to " + std::to_string(options.ranks - 1);
  }
  if (fault.step >= options.steps) {
    return std::string("--") + what + "-step: there are only steps 0 to " + std::to_string(options.steps - 1);
  }
  return {};
}

}  // namespace

const char* name(Setting setting) {
  switch (setting) {
    case Setting::same:
      return "s1-1";
    case Setting::own_shuffle:
      return "s1-2";
    case Setting::own_seeds:
      return "s1-3";
  }
  return "?";
}

std::optional<int> parse_options(int argc, char** argv, Options& options) {
  options.data = GRADPROBE_DEMO_DATA;
  CLI::App app("Data-parallel training of a small network on handwritten digits, one process a rank, through NCCL.",
               "gradprobe-demo-train");
  app.add_option("--setting", options.setting,
                 "What differs between the ranks: s1-1 nothing, s1-2 the order of the images, s1-3 order and dropout "
                 "[s1-3]")
      ->transform(CLI::CheckedTransformer(kSettings))
      ->option_text("s1-1|s1-2|s1-3");
  app.add_option("--dtype", options.type, "Type of the gradient buckets on the wire [f32]")
      ->transform(CLI::CheckedTransformer(kTypes))
      ->option_text("f32|bf16|f16");
  app.add_option("--ranks", options.ranks, "Processes; 0: one for each device, at most 8 [8]")
      ->check(CLI::Range(0, kMaxRanks))
      ->option_text("N");
  app.add_option("--steps", options.steps, "Optimizer steps [60]")->check(CLI::Range(1, 10000))->option_text("N");
  app.add_option("--batch", options.batch, "Images a step and rank [64]")->check(CLI::Range(1, 1024))->option_text("N");
  app.add_option("--seed", options.seed, "Seed of weights, order and dropout [1]")->option_text("N");
  app.add_option("--learning-rate", options.learning_rate, "Step size of plain SGD [0.02]")
      ->check(CLI::NonNegativeNumber)
      ->option_text("X");
  app.add_option("--dropout", options.dropout, "Share of hidden units that are dropped [0.2]")
      ->check(CLI::Range(0.0f, 0.95f))
      ->option_text("X");
  auto* nan_rank = app.add_option("--nan-rank", options.nan.rank, "This rank writes a NaN into one gradient ...")
                       ->check(CLI::NonNegativeNumber)
                       ->option_text("R");
  auto* nan_step = app.add_option("--nan-step", options.nan.step, "... in this step, from 0")
                       ->check(CLI::NonNegativeNumber)
                       ->option_text("S");
  auto* kill_rank = app.add_option("--kill-rank", options.kill.rank, "This rank is killed (SIGKILL) ...")
                        ->check(CLI::NonNegativeNumber)
                        ->option_text("R");
  auto* kill_step = app.add_option("--kill-step", options.kill.step, "... in this step, from 0")
                        ->check(CLI::NonNegativeNumber)
                        ->option_text("S");
  nan_rank->needs(nan_step);
  nan_step->needs(nan_rank);
  kill_rank->needs(kill_step);
  kill_step->needs(kill_rank);
  app.add_option("--data", options.data, "The images, as CSV")->option_text("FILE");
  app.add_option("--weights", options.weights, "Write the trained weights here (float32, little-endian)")
      ->option_text("FILE");
  app.add_option("--truth", options.truth, "Write the host's own float64 norm of every input here, one file a rank")
      ->option_text("DIR");
  app.add_flag("--truth-buckets", options.truth_buckets, "With --truth: the inputs themselves, too");
  app.add_option("--timeout", options.timeout_s, "Seconds without progress after which a rank gives up [60]")
      ->check(CLI::Range(1, 3600))
      ->option_text("S");
  app.add_flag("--quiet", options.quiet, "No progress");
  try {
    app.parse(argc, argv);
    for (const std::string& wrong :
         {check_fault("nan", options.nan, options), check_fault("kill", options.kill, options)}) {
      if (!wrong.empty()) throw CLI::ValidationError(wrong);
    }
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gradprobe-demo-train: %s (--help lists the options)\n", error.what());
    return 2;
  }
  return std::nullopt;
}

}  // namespace gradprobe::demo
