// The subcommands. Each returns the exit code: 0, or 2 after one line on stderr.
#pragma once

#include <cstdint>
#include <string>
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

}  // namespace gradprobe::tool
