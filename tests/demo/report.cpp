// gradprobe-demo-report: turns what `gradprobe compare --json` said about the demo's four runs into one table and a few
// sentences. All numbers come from the rings by way of the tool.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Json = nlohmann::json;

struct Step {
  double loss = NAN, loss_cv = NAN, norm_cv = NAN, cosine = NAN, low = NAN, high = NAN;
  int ranks = 0;
};

struct Run {
  std::string name, what;
  std::vector<Step> steps;
  double start = NAN, middle = NAN, end = NAN;                               // averaged loss
  double loss_cv = NAN, norm_cv = NAN, cosine = NAN, low = NAN, high = NAN;  // means over steps
};

double number(const Json& object, const char* key) {
  const Json& value = object.at(key);
  return value.is_number() ? value.get<double>() : NAN;
}

std::vector<Json> read_lines(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(fmt::format("{}: {}", file, std::strerror(errno)));
  std::vector<Json> objects;
  for (std::string line; std::getline(in, line);) {
    try {
      objects.push_back(Json::parse(line));
    } catch (const Json::exception& error) {
      throw std::runtime_error(fmt::format("{}: line {}: {}", file, objects.size() + 1, error.what()));
    }
  }
  return objects;
}

template <class Get>
double mean(const std::vector<Step>& steps, std::size_t first, std::size_t count, Get get) {
  double sum = 0;
  for (std::size_t i = first; i < first + count; ++i) sum += get(steps[i]);
  return sum / static_cast<double>(count);
}

Run read_run(const std::string& folder, const std::string& name, const std::string& what) {
  Run run;
  run.name = name;
  run.what = what;
  const std::string file = fmt::format("{}/{}.compare.jsonl", folder, name);
  for (const Json& line : read_lines(file)) {
    run.steps.push_back({number(line, "loss_mean"), number(line, "loss_cv"), number(line, "norm_cv"),
                         number(line, "mean_cosine"), number(line, "cosine_low"), number(line, "cosine_high"),
                         line.at("ranks").get<int>()});
  }
  if (run.steps.empty()) throw std::runtime_error(fmt::format("{}: no step in it: nothing was recorded", file));
  const std::size_t steps = run.steps.size();
  const std::size_t window = std::min<std::size_t>(10, steps);
  const auto loss = [](const Step& s) { return s.loss; };
  run.start = mean(run.steps, 0, std::min<std::size_t>(5, steps), loss);
  run.middle = mean(run.steps, (steps - window) / 2, window, loss);
  run.end = mean(run.steps, steps - window, window, loss);
  run.loss_cv = mean(run.steps, 0, steps, [](const Step& s) { return s.loss_cv; });
  run.norm_cv = mean(run.steps, 0, steps, [](const Step& s) { return s.norm_cv; });
  run.cosine = mean(run.steps, 0, steps, [](const Step& s) { return s.cosine; });
  run.low = mean(run.steps, 0, steps, [](const Step& s) { return s.low; });
  run.high = mean(run.steps, 0, steps, [](const Step& s) { return s.high; });
  return run;
}

// The averaged loss over the whole run in `width` characters, on a scale common to all runs.
std::string curve(const Run& run, double lowest, double highest, int width, bool utf8) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {"_", ".", "-", "~", "=", "+", "*", "#"};
  std::string text;
  const std::size_t steps = run.steps.size();
  for (int i = 0; i < width; ++i) {
    const std::size_t first = steps * static_cast<std::size_t>(i) / static_cast<std::size_t>(width);
    const std::size_t last = steps * static_cast<std::size_t>(i + 1) / static_cast<std::size_t>(width);
    const std::size_t count = std::max<std::size_t>(1, last - first);
    const double loss = mean(run.steps, std::min(first, steps - 1), count, [](const Step& s) { return s.loss; });
    const double share = (loss - lowest) / std::max(highest - lowest, 1e-12);
    const int level = std::isfinite(share) ? std::clamp(static_cast<int>(share * 8), 0, 7) : 7;
    text += utf8 ? kBlocks[level] : kAscii[level];
  }
  return text;
}

bool terminal_shows_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    return std::strstr(value, "UTF-8") != nullptr || std::strstr(value, "utf8") != nullptr;
  }
  return false;
}

void print_table(const std::vector<Run>& runs) {
  double lowest = INFINITY;
  double highest = -INFINITY;
  for (const Run& run : runs) {
    for (const double loss : {run.start, run.middle, run.end}) {
      lowest = std::min(lowest, loss);
      highest = std::max(highest, loss);
    }
  }
  const bool utf8 = terminal_shows_utf8();
  constexpr int kCurve = 12;
  fmt::print(
      "{} ranks, {} steps a run. Left what a dashboard shows, right what gradprobe saw before the all-reduce.\n\n",
      runs[0].steps[0].ranks, runs[0].steps.size());
  fmt::print(
      "                                        averaged loss          |   ranks against each other, mean of steps\n");
  fmt::print(
      "setting                       start   mid   end  {:{}} | loss CV  norm CV  mean cosine [95 % of a step]\n", "",
      kCurve);
  fmt::print("{:-<62}+{:-<48}\n", "", "");
  for (const Run& run : runs) {
    fmt::print("{} {:24} {:5.2f} {:5.2f} {:5.2f}  {} | {:5.1f} %  {:5.1f} %  {:6.3f} [{:.3f}, {:.3f}]\n", run.name,
               run.what, run.start, run.middle, run.end, curve(run, lowest, highest, kCurve, utf8), 100 * run.loss_cv,
               100 * run.norm_cv, run.cosine, run.low, run.high);
  }
}

// What the three runs are there to show. Returns what they fail to show.
std::vector<std::string> unmet(const std::vector<Run>& runs, double spread) {
  std::vector<std::string> missing;
  const auto rises = [&](auto get) { return get(runs[0]) < get(runs[1]) && get(runs[1]) < get(runs[2]); };
  if (!(spread <= 0.15)) missing.push_back(fmt::format("averaged losses end {:.0f} % apart", 100 * spread));
  if (!rises([](const Run& r) { return r.loss_cv; })) missing.push_back("the loss CV doesn't rise");
  if (!rises([](const Run& r) { return r.norm_cv; })) missing.push_back("the norm CV doesn't rise");
  if (!rises([](const Run& r) { return -r.cosine; })) missing.push_back("the mean cosine doesn't fall");
  return missing;
}

bool print_conclusion(const std::vector<Run>& runs) {
  const auto [low, high] =
      std::minmax_element(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.end < b.end; });
  const double spread = high->end / low->end - 1;
  const std::vector<std::string> missing = unmet(runs, spread);
  if (!missing.empty()) {
    fmt::print("\nThis run does not show what the demo is for:");
    for (const std::string& what : missing) fmt::print(" {};", what);
    fmt::print(" more steps or ranks may help.\n");
    return false;
  }
  const int ranks = runs[0].steps[0].ranks;
  fmt::print(
      "\nThe averaged loss ends within {:.0f} % in all three runs, so a dashboard would call them alike. The ranks' "
      "own\n"
      "gradients, seen before NCCL averages them, tell them apart: in s1-1 all {} ranks computed the same gradient\n"
      "(cosine {:.2f}) and all but one worked for nothing; in s1-2 they still agree on much of the direction because "
      "they\n"
      "drop the same units ({:.2f}); in s1-3 each rank adds something of its own ({:.2f}).\n",
      100 * spread, ranks, runs[0].cosine, runs[1].cosine, runs[2].cosine);
  return true;
}

// Prints text broken at spaces, every line behind `indent`.
void print_wrapped(const std::string& text, const std::string& indent) {
  constexpr std::size_t kColumns = 110;
  std::string line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > kColumns) {
      fmt::print("{}{}\n", indent, line);
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  fmt::print("{}{}\n", indent, line);
}

bool print_fault(const std::string& folder, int rank, int step) {
  const std::string file = fmt::format("{}/nan.summary.json", folder);
  fmt::print(
      "\nFaulty run: rank {} wrote one NaN into one gradient in step {}; one step later every rank's loss is NaN.\n",
      rank, step);
  bool named = false;
  for (const Json& summary : read_lines(file)) {
    for (const Json& finding : summary.at("findings")) {
      if (!finding.at("notable").get<bool>()) continue;
      const auto text = finding.at("text").get<std::string>();
      print_wrapped("gradprobe compare names: " + text, "  ");
      named = named || finding.at("kind") == "nonfinite";
    }
  }
  if (!named) fmt::print("  gradprobe compare names nobody: {} holds no finding of a NaN.\n", file);
  return named;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Prints the demo's table from what gradprobe compare wrote", "gradprobe-demo-report");
  std::string folder;
  int nan_rank = 0;
  int nan_step = 0;
  app.add_option("DIR", folder, "Folder with s1-1.compare.jsonl, s1-2..., s1-3... and nan.summary.json")->required();
  app.add_option("--nan-rank", nan_rank, "Rank of the planted NaN")->required();
  app.add_option("--nan-step", nan_step, "Step of the planted NaN")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "gradprobe-demo-report: {}\n", error.what());
    return 2;
  }
  try {
    const std::vector<Run> runs = {read_run(folder, "s1-1", "same data, same dropout"),
                                   read_run(folder, "s1-2", "own data,  same dropout"),
                                   read_run(folder, "s1-3", "own data,  own dropout")};
    print_table(runs);
    const bool shown = print_conclusion(runs);
    const bool named = print_fault(folder, nan_rank, nan_step);
    return shown && named ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "gradprobe-demo-report: {}\n", error.what());
    return 1;
  }
}
