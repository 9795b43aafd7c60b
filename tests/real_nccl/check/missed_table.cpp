#include "missed_table.hpp"

#include <fnmatch.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace gradprobe::real {
namespace {

using Version = std::array<int, 3>;

Version parse_version(const std::string& text, int missing) {
  Version v{missing, missing, missing};
  std::sscanf(text.c_str(), "%d.%d.%d", &v[0], &v[1], &v[2]);
  return v;
}

// "*", "2.28", "2.28-2.30" (all of both), "2.31-".
bool in_range(const std::string& version, const std::string& range) {
  if (range == "*") return true;
  const std::size_t dash = range.find('-');
  const std::string from = range.substr(0, dash);
  const std::string to = dash == std::string::npos ? from : range.substr(dash + 1);
  const Version v = parse_version(version, 0);
  return v >= parse_version(from, 0) && (to.empty() || v <= parse_version(to, 1 << 30));
}

// Of patterns with commas between them, one fits.
bool fits(const std::string& patterns, const std::string& text) {
  std::istringstream list(patterns);
  for (std::string p; std::getline(list, p, ',');)
    if (fnmatch(p.c_str(), text.c_str(), 0) == 0) return true;
  return false;
}

}  // namespace

MissedTable::MissedTable(const std::string& file, const Setting& setting) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file + ": can't be read");
  std::string line;
  for (int n = 1; std::getline(in, line); n++) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string duty, way, versions, bundles, what;
    Row row;
    if (!(words >> duty)) continue;
    words >> way >> versions >> bundles >> row.modes >> row.functions >> what >> row.reason;
    const bool known = (duty == "must" || duty == "may") && (what == "input" || what == "result" || what == "both");
    if (!known || row.reason.empty())
      throw std::runtime_error(file + ":" + std::to_string(n) + ": not a row; see the head of the file");
    row.must = duty == "must";
    row.input = what != "result";
    row.result = what != "input";
    if (fits(way, setting.way) && in_range(setting.version, versions) && fits(bundles, setting.bundle))
      rows_.push_back(row);
  }
}

Expectation MissedTable::expected(const LedgerCall& call, bool result) const {
  for (const Row& row : rows_) {
    if (!(result ? row.result : row.input)) continue;
    const bool aborted = call.has_output == Output::undone;
    const std::string kind = call.mode + (aborted ? "/aborted" : call.captured ? "/captured" : "/direct");
    if ((fits(row.modes, call.mode) || fits(row.modes, kind)) && fits(row.functions, call.function))
      return {row.must ? Duty::missed : Duty::either, row.reason};
  }
  return {};
}

}  // namespace gradprobe::real
