// For tests: runs the demo's programs with an environment of their own and reads what they leave behind.
#pragma once

#include <gradprobe/ring_reader.hpp>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace gradprobe::demo {

// Deleted with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

using Environment = std::map<std::string, std::string>;

struct Outcome {
  int status = 0;   // exit status; 128 + signal when killed; -1 when it ran into the limit
  std::string out;  // what it printed
  std::string err;
};

// Runs a program with this process's environment and `extra`, for at most two minutes.
Outcome run_program(const std::vector<std::string>& command, const Environment& extra);

// gradprobe-demo-train without a profiler plugin, and with gradprobe writing to `rings`.
Outcome train(const std::vector<std::string>& arguments, const Environment& extra = {});
Outcome train_measured(const std::vector<std::string>& arguments, const std::string& rings,
                       const Environment& extra = {});

Outcome gradprobe_tool(const std::vector<std::string>& arguments);

std::string read_file(const std::string& file);
std::vector<nlohmann::json> read_json_lines(const std::string& text);

struct Ring {
  FileHeader header{};
  LiveCounters counters{};
  std::vector<Record> records;
};

// All rings of a folder by rank. Fails the test when one can't be read, or when records are damaged.
std::map<std::uint32_t, Ring> read_rings(const std::string& folder);

// Lines that contain all of `words`.
int count_lines(const std::string& text, const std::vector<std::string>& words);

}  // namespace gradprobe::demo
