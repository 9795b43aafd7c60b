// Runs the ranks of one training as processes and collects what they leave.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace gradprobe::faults {

using Environment = std::map<std::string, std::string>;

inline constexpr int kRanks = 3;
inline constexpr std::chrono::seconds kLimit(30);  // a run that takes longer hangs
inline constexpr int kHung = -1;                   // its status

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Rank {
  int status = kHung;                     // exit code, 128 + signal, or kHung
  std::string weights;                    // bytes; empty when the rank saved none
  std::vector<std::string> plugin_lines;  // what the plugin said: lines on stderr that begin with "gradprobe:"
  std::string err;                        // all of stderr
};

struct Job {
  std::string scenario = "train";
  std::string program;  // default: faults_rank
  bool plugin = true;
  Environment all;                 // of all ranks
  std::map<int, Environment> one;  // of single ranks, over `all`
};

// A started job: its processes end with the object at the latest.
class Running {
 public:
  explicit Running(const Job& job, int ranks = kRanks);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  const TemporaryFolder& folder() const { return folder_; }
  // Ring files are here: GRADPROBE_DIR of all ranks.
  std::string rings() const { return folder_ / "rings"; }
  bool ended(int rank);
  // Waits until the rank's process is stopped; false when it ended or took too long.
  bool wait_until_stopped(int rank);
  // Waits for all ranks, kLimit at most.
  std::vector<Rank> wait();

 private:
  TemporaryFolder folder_;
  std::vector<pid_t> pids_;
  std::vector<int> statuses_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

std::vector<Rank> run(const Job& job);

// The weights of a scenario's training without the plugin.
const std::string& expected_weights(const std::string& scenario = "train");

// Every rank ended with code 0 and the right weights.
void expect_trained(const std::vector<Rank>& ranks, const std::string& what, const std::string& scenario = "train");

// "name number" lines.
std::map<std::string, unsigned> read_counts(const std::string& file);

std::string read_file(const std::string& path);

}  // namespace gradprobe::faults
