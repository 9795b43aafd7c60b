// Work that may hang or crash, done in a child process with a time limit: other people's libraries and drivers.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace gradprobe::tool {

struct ChildOutcome {
  enum class End { exited, signalled, timed_out, not_started } end = End::not_started;
  int code = 0;        // exit status or signal
  std::string output;  // what it wrote, up to 1 MiB
  bool ok() const { return end == End::exited && code == 0; }
};

// How it ended, in words: "crashed (Segmentation fault)", "did not answer within 10 s".
std::string describe(const ChildOutcome& outcome, std::chrono::seconds limit);

// Runs `work` in a forked child, whose standard output and error are discarded; what it returns is the outcome's
// output. The child and what it started are killed after `limit`. Not for processes with more than one thread.
ChildOutcome in_child(std::chrono::seconds limit, const std::function<std::string()>& work);

// Runs a program with nothing to read and returns its standard output.
ChildOutcome run_program(std::chrono::seconds limit, const std::string& path, const std::vector<std::string>& arguments,
                         const std::vector<std::string>& environment);

}  // namespace gradprobe::tool
