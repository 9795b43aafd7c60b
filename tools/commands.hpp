// The subcommands. Each returns the exit code: 0, or 2 after one line on stderr; others say so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradprobe::tool {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFindings = 1;
inline constexpr int kExitError = 2;

// "7", "7:9", ":9", "7:" - both ends belong to the range.
struct StepRange {
  std::uint64_t first = 0;
  std::uint64_t last = UINT64_MAX;
  bool given = false;

  bool contains(std::uint64_t step) const { return !given || (step >= first && step <= last); }
};

// Returns false when `text` is no range.
bool parse_step_range(const std::string& text, StepRange& range);

// "3" or "0,2,5", appended to `ranks`. Returns false when `text` is no list of numbers.
bool parse_ranks(const std::string& text, std::vector<std::uint32_t>& ranks);

struct DumpOptions {
  std::string path;
  std::vector<std::string> kinds;
  std::vector<std::uint32_t> ranks;
  StepRange steps;
  bool json = false;
  bool sketch = false;
  bool follow = false;
};
int dump(const DumpOptions& options);

int info(const std::string& path);

struct CompareOptions {
  std::string path;
  std::string comm;
  StepRange steps;
  bool json = false;
  bool summary = false;
  bool fail_on_findings = false;
};
int compare(const CompareOptions& options);

struct DoctorOptions {
  std::vector<std::string> command;  // looked at, never run
  int pid = 0;                       // a running process instead; 0: none
  bool json = false;
};
// 1: there is something to fix.
int doctor(const DoctorOptions& options);

struct RunOptions {
  std::vector<std::string> command;                           // one word at least
  std::string folder;                                         // empty: GRADPROBE_DIR, else a new one
  std::vector<std::pair<std::string, std::string>> settings;  // variables and their values
  bool preload = false;
  bool chain = false;
  bool quiet = false;  // no summary
};
// The exit code is the command's, as a shell gives it; 2 when it was not started because of the options.
int run(const RunOptions& options);

struct ControlOptions {
  std::string folder;
  std::optional<bool> measure;
  std::optional<std::uint64_t> every, result_every, from_step;
  bool reset = false;
  bool changes() const { return measure || every || result_every; }
  bool shows_only() const { return !reset && !changes(); }
};
int control(const ControlOptions& options);

}  // namespace gradprobe::tool
