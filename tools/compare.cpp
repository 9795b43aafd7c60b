#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "commands.hpp"
#include "comparison.hpp"
#include "findings.hpp"
#include "output.hpp"
#include "words.hpp"

namespace gradprobe::tool {
namespace {

constexpr std::size_t kNotesShown = 8;

std::string number(double value, const char* format = "{:.6g}") {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}

std::string at_rank(const Dispersion& d, const RankValue& v) {
  return d.count == 0 ? "-" : fmt::format("{:.6g} (r{})", v.value, v.rank);
}

std::string cosine_text(const Cosine& c) {
  return std::isnan(c.value) ? "-" : fmt::format("{:+.4f} [{:+.4f}, {:+.4f}]", c.value, c.low, c.high);
}

std::string worst_text(const StepComparison& s) {
  return s.worst ? fmt::format("{}-{} {:+.4f}", s.worst->first, s.worst->second, s.worst->cosine.value) : "-";
}

void print_table_header() {
  print_line(fmt::format("{:>6} {:>5} | {:>10} {:>10} {:>10} {:>8} | {:>10} {:>10} {:>8} {:>18} {:>18} | {:25} {}",
                         "step", "ranks", "loss mean", "std", "range", "CV", "norm mean", "std", "CV", "min", "max",
                         "mean cosine [95 %]", "worst pair"));
}

void print_row(const StepComparison& s) {
  print_line(fmt::format("{:>6} {:>5} | {:>10} {:>10} {:>10} {:>8} | {:>10} {:>10} {:>8} {:>18} {:>18} | {:25} {}",
                         s.step, s.ranks.size(), number(s.loss.mean), number(s.loss.std, "{:.4g}"),
                         number(s.loss.range, "{:.4g}"), number(s.loss.cv, "{:.2e}"), number(s.norm.mean),
                         number(s.norm.std, "{:.4g}"), number(s.norm.cv, "{:.2e}"), at_rank(s.norm, s.norm.min),
                         at_rank(s.norm, s.norm.max), cosine_text(s.mean_cosine), worst_text(s)));
}

Json number_or_null(double value) {
  return std::isnan(value) ? Json(nullptr) : json_number(value);
}

Json rank_or_null(const Dispersion& d, const RankValue& v) {
  return d.count == 0 ? Json(nullptr) : Json(v.rank);
}
Json value_or_null(const Dispersion& d, const RankValue& v) {
  return d.count == 0 ? Json(nullptr) : json_number(v.value);
}

Json to_json(const ResultMismatch& m) {
  Json j;
  j["op"] = m.key.op;
  j["replay"] = m.key.replay;
  j["datatype"] = name(m.datatype);
  j["count"] = m.count;
  j["differing"] = m.majority ? Json(m.differing()) : Json(nullptr);
  j["equal_ranks"] = m.groups;
  return j;
}

Json to_json(const Communicator& comm, const StepComparison& s) {
  Json j;
  j["comm"] = hex(comm.id);
  j["step"] = s.step;
  j["ranks"] = s.ranks.size();
  j["rank_list"] = s.ranks;
  j["complete"] = s.complete;
  j["loss_from"] = s.loss.count == 0 ? Json(nullptr) : Json(s.loss_marked ? "mark" : "scalar");
  j["loss_mean"] = number_or_null(s.loss.mean);
  j["loss_std"] = number_or_null(s.loss.std);
  j["loss_cv"] = number_or_null(s.loss.cv);
  j["loss_range"] = number_or_null(s.loss.range);
  j["norm_mean"] = number_or_null(s.norm.mean);
  j["norm_std"] = number_or_null(s.norm.std);
  j["norm_cv"] = number_or_null(s.norm.cv);
  j["norm_min"] = value_or_null(s.norm, s.norm.min);
  j["norm_min_rank"] = rank_or_null(s.norm, s.norm.min);
  j["norm_max"] = value_or_null(s.norm, s.norm.max);
  j["norm_max_rank"] = rank_or_null(s.norm, s.norm.max);
  j["norm_buckets"] = s.norm_buckets;
  j["mean_cosine"] = number_or_null(s.mean_cosine.value);
  j["cosine_low"] = number_or_null(s.mean_cosine.low);
  j["cosine_high"] = number_or_null(s.mean_cosine.high);
  j["cosine_buckets"] = s.cosine_buckets;
  if (s.worst) {
    j["worst_pair"] = {s.worst->first, s.worst->second};
    j["worst_cosine"] = number_or_null(s.worst->cosine.value);
    j["worst_low"] = number_or_null(s.worst->cosine.low);
    j["worst_high"] = number_or_null(s.worst->cosine.high);
  } else {
    j["worst_pair"] = j["worst_cosine"] = j["worst_low"] = j["worst_high"] = nullptr;
  }
  j["identical"] = s.identical;
  j["results_compared"] = s.results_compared;
  j["result_mismatches"] = Json::array();
  for (const ResultMismatch& m : s.result_mismatches) j["result_mismatches"].push_back(to_json(m));
  j["notes"] = s.notes;
  return j;
}

// Means over steps; a step without the number doesn't count.
struct Summary {
  std::size_t steps = 0;
  double loss_first = NAN, loss_last = NAN, loss_cv = NAN;
  double norm_mean = NAN, norm_cv = NAN;
  double cosine = NAN, cosine_min = NAN, cosine_max = NAN;
};

class Mean {
 public:
  void add(double value) {
    if (!std::isfinite(value)) return;
    sum_ += value;
    count_++;
  }
  double get() const { return count_ == 0 ? NAN : sum_ / static_cast<double>(count_); }

 private:
  double sum_ = 0;
  std::size_t count_ = 0;
};

Summary summarize(const std::vector<StepComparison>& steps) {
  Summary s;
  s.steps = steps.size();
  Mean loss_cv, norm_mean, norm_cv, cosine;
  for (const StepComparison& step : steps) {
    if (!step.complete) continue;
    loss_cv.add(step.loss.cv);
    norm_mean.add(step.norm.mean);
    norm_cv.add(step.norm.cv);
    cosine.add(step.mean_cosine.value);
    if (std::isfinite(step.loss.mean)) {
      if (std::isnan(s.loss_first)) s.loss_first = step.loss.mean;
      s.loss_last = step.loss.mean;
    }
    s.cosine_min = std::fmin(s.cosine_min, step.mean_cosine.value);
    s.cosine_max = std::fmax(s.cosine_max, step.mean_cosine.value);
  }
  s.loss_cv = loss_cv.get();
  s.norm_mean = norm_mean.get();
  s.norm_cv = norm_cv.get();
  s.cosine = cosine.get();
  return s;
}

void print_summary(const Communicator& comm, const std::vector<StepComparison>& steps,
                   const std::vector<Finding>& findings) {
  const Summary s = summarize(steps);
  print_line(fmt::format("Summary of communicator {}: {} step(s), means over steps", hex(comm.id), s.steps));
  print_line(fmt::format("  loss: mean over ranks {} at first, {} at last; CV {}", number(s.loss_first),
                         number(s.loss_last), number(s.loss_cv, "{:.3e}")));
  print_line(fmt::format("  gradient norm: mean {}; CV {}", number(s.norm_mean), number(s.norm_cv, "{:.3e}")));
  print_line(fmt::format("  mean pairwise cosine: {} (steps from {} to {})", number(s.cosine, "{:+.4f}"),
                         number(s.cosine_min, "{:+.4f}"), number(s.cosine_max, "{:+.4f}")));
  if (const ResultComparison& results = comm.results; results.compared > 0) {
    print_line(fmt::format("  results: {} all-reduces compared between ranks, {} differ", results.compared,
                           results.mismatches.size()));
  }
  // The same remark about many steps is said once.
  std::vector<std::pair<std::string, std::size_t>> remarks;
  for (const StepComparison& step : steps) {
    for (const std::string& note : step.notes) {
      if (remarks.size() < kNotesShown)
        remarks.emplace_back(fmt::format("step {}: {}", step.step, note), 1);
      else
        remarks.back().second++;
    }
  }
  for (const auto& [text, count] : remarks)
    print_line("  note: " + text + (count > 1 ? fmt::format(" (and {} notes more, see --json)", count - 1) : ""));
  if (const std::string why = why_not_compared(comm, steps); !why.empty()) {
    print_line("  No step compared: " + why + ".");
  } else if (findings.empty()) {
    print_line("  Nothing conspicuous found.");
  }
  for (const Finding& finding : findings) print_line((finding.notable ? "  FINDING: " : "  data: ") + finding.text);
}

Json summary_json(const Communicator& comm, const std::vector<StepComparison>& steps,
                  const std::vector<Finding>& findings) {
  const Summary s = summarize(steps);
  Json j;
  j["comm"] = hex(comm.id);
  j["nranks"] = comm.nranks;
  j["ranks"] = comm.rings.size();
  j["steps"] = s.steps;
  j["steps_compared"] = steps_compared(steps);
  const std::string why = why_not_compared(comm, steps);
  j["not_compared"] = why.empty() ? Json(nullptr) : Json(why);
  j["loss_first"] = number_or_null(s.loss_first);
  j["loss_last"] = number_or_null(s.loss_last);
  j["loss_cv"] = number_or_null(s.loss_cv);
  j["norm_mean"] = number_or_null(s.norm_mean);
  j["norm_cv"] = number_or_null(s.norm_cv);
  j["mean_cosine"] = number_or_null(s.cosine);
  j["cosine_step_min"] = number_or_null(s.cosine_min);
  j["cosine_step_max"] = number_or_null(s.cosine_max);
  j["results_compared"] = comm.results.compared;
  j["results_different"] = comm.results.mismatches.size();
  j["findings"] = Json::array();
  for (const Finding& f : findings)
    j["findings"].push_back({{"kind", f.kind}, {"text", f.text}, {"notable", f.notable}});
  return j;
}

bool parse_comm(std::string text, std::uint64_t& id) {
  if (text.starts_with("0x") || text.starts_with("0X")) text.erase(0, 2);
  if (text.empty() || text.size() > 16) return false;
  if (!std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; })) return false;
  id = std::stoull(text, nullptr, 16);
  return true;
}

void print_communicator_title(const Communicator& comm) {
  const std::string title = printable(comm.name);
  print_line(fmt::format("Communicator {}{}: {} of {} ranks", hex(comm.id), title.empty() ? "" : " \"" + title + "\"",
                         comm.rings.size(), comm.nranks));
}

}  // namespace

int compare(const CompareOptions& options) {
  std::uint64_t wanted = 0;
  if (!options.comm.empty() && !parse_comm(options.comm, wanted)) {
    print_note(fmt::format("command line: --comm: '{}' is no communicator id; write it as gradprobe prints it",
                           printable(options.comm)));
    return kExitError;
  }
  const RingFiles found = open_rings(options.path);
  if (!found.error.empty()) {
    print_note(found.error);
    return kExitError;
  }
  for (const std::string& note : found.notes) print_note(note);
  std::vector<Communicator> communicators = group_by_communicator(found.readers);
  if (!options.comm.empty()) std::erase_if(communicators, [&](const Communicator& c) { return c.id != wanted; });
  if (communicators.empty()) {
    print_note(fmt::format("{}: no ring of communicator {}; gradprobe info lists those that are there", options.path,
                           options.comm));
    return kExitError;
  }

  const std::vector<Finding> across = find_across(communicators);
  bool notable = false;
  for (const Communicator& comm : communicators) {
    const bool table = !options.json && !options.summary;
    if (!options.json) print_communicator_title(comm);
    if (table) print_table_header();
    std::vector<StepComparison> steps;
    for (const std::uint64_t step : steps_of(comm, options.steps)) {
      steps.push_back(compare_step(comm, step));
      if (table) print_row(steps.back());
      if (options.json && !options.summary) print_json(to_json(comm, steps.back()));
    }
    std::vector<Finding> findings = find_in(comm, steps);
    notable = notable || std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return f.notable; });
    if (!options.json) print_summary(comm, steps, findings);
    if (options.json && options.summary) {
      findings.insert(findings.end(), across.begin(), across.end());
      print_json(summary_json(comm, steps, findings));
    }
  }
  if (!options.json) {
    for (const Finding& finding : across) print_line("data: " + finding.text);
    print_line(kScaleAssumption);
    print_line(
        "Loss: the step's mark named loss (gradprobe_scalar); where no rank has one, the last one-element "
        "floating-point scalar. std is over the ranks (divided by n); CV is "
        "std/|mean|.");
  }
  return options.fail_on_findings && notable ? kExitFindings : kExitOk;
}

}  // namespace gradprobe::tool
