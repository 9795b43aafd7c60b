// The programs whose traces lie in tests/data/nccl-traces, written again for the stand-in: two ranks, in-place
// all-reduces of 1024 floats on one stream, unless the name says otherwise.
#pragma once
#include <string>
#include <vector>

namespace scenarios {

inline const std::vector<std::string> kNames = {"single",      "single-net", "single-blocking", "single-mask2883",
                                                "outofplace",  "allgather",  "reducescatter",   "group3",
                                                "group3sizes", "threads",    "multidev",        "multidev-group2",
                                                "nonblocking", "graph",      "graph-net"};

struct Settings {
  std::string nccl_version;
  std::string plugin;       // path of the call log
  std::string trace_file;   // written to
  unsigned long long mask;  // profiler events
};

// Runs the scenario in child processes; their failed expectations are the caller's.
void run(const std::string& name, const Settings&);

}  // namespace scenarios
