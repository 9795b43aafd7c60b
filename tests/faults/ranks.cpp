#include "ranks.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace gradprobe::faults {
namespace {

constexpr int kRunning = -2;

std::string hexadecimal(const ncclUniqueId& id) {
  std::string text;
  for (const char c : id.internal) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", static_cast<unsigned char>(c));
    text += pair;
  }
  return text;
}

pid_t start(const std::string& program, const std::string& scenario, const Environment& environment,
            const std::string& err) {
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!environment.contains(text.substr(0, text.find('=')))) texts.push_back(text);
  }
  for (const auto& [name, value] : environment) texts.push_back(name + "=" + value);
  std::vector<char*> variables;
  for (std::string& text : texts) variables.push_back(text.data());
  variables.push_back(nullptr);
  std::string path = program;
  std::string argument = scenario;
  char* arguments[] = {path.data(), argument.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, path.c_str(), &actions, nullptr, arguments, variables.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("can't start " + program);
  return pid;
}

}  // namespace

TemporaryFolder::TemporaryFolder() : path_(testing::TempDir() + "gradprobe-faults-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::map<std::string, unsigned> read_counts(const std::string& file) {
  std::map<std::string, unsigned> counts;
  std::ifstream in(file);
  std::string name;
  for (unsigned n = 0; in >> name >> n;) counts[name] = n;
  return counts;
}

Running::Running(const Job& job, int ranks) {
  ncclUniqueId id;
  if (ncclGetUniqueId(&id) != ncclSuccess) throw std::runtime_error("ncclGetUniqueId failed");
  for (int r = 0; r < ranks; r++) {
    const std::string name = std::to_string(r);
    Environment environment = {
        {"FAULTS_RANK", name},
        {"FAULTS_RANKS", std::to_string(ranks)},
        {"FAULTS_ID", hexadecimal(id)},
        {"FAULTS_OUT", folder_ / ("weights" + name)},
        {"FAULTS_FOLDER", folder_.path()},
        {"NCCL_PROFILER_PLUGIN", job.plugin ? GRADPROBE_PLUGIN_FILE : "none"},
        {"NCCL_DEBUG", ""},
        {"GRADPROBE_DIR", rings()},
        {"GRADPROBE_RING_MB", "1"},
        {"GRADPROBE_SKETCH", "256"},
        // The stand-in's device is never behind the host: on a loaded machine a gate waits for a host thread's turn.
        {"GRADPROBE_GATE_TIMEOUT", "10000"},
        {"STANDIN_CUDA_DEVICES", std::to_string(ranks)},
    };
    const auto merge = [&](const Environment& extra) {
      for (const auto& [key, value] : extra) {
        std::string text = value;
        if (const std::size_t at = text.find("FOLDER"); at != std::string::npos) text.replace(at, 6, folder_.path());
        environment[key] = text;
      }
    };
    merge(job.all);
    if (const auto mine = job.one.find(r); mine != job.one.end()) merge(mine->second);
    pids_.push_back(start(job.program.empty() ? FAULTS_RANK_PROGRAM : job.program, job.scenario, environment,
                          folder_ / ("err" + name)));
    statuses_.push_back(kRunning);
  }
}

Running::~Running() {
  for (std::size_t i = 0; i < pids_.size(); i++) {
    if (statuses_[i] != kRunning) continue;
    kill(pids_[i], SIGKILL);
    waitpid(pids_[i], nullptr, 0);
  }
}

bool Running::ended(int rank) {
  const auto i = static_cast<std::size_t>(rank);
  int status = 0;
  if (statuses_[i] == kRunning && waitpid(pids_[i], &status, WNOHANG) == pids_[i])
    statuses_[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return statuses_[i] != kRunning;
}

bool Running::wait_until_stopped(int rank) {
  const auto i = static_cast<std::size_t>(rank);
  while (std::chrono::steady_clock::now() - begin_ < kLimit) {
    int status = 0;
    if (waitpid(pids_[i], &status, WNOHANG | WUNTRACED) == pids_[i]) {
      if (WIFSTOPPED(status)) return true;
      statuses_[i] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

std::vector<Rank> Running::wait() {
  const auto all_ended = [&] {
    bool all = true;
    for (int r = 0; r < static_cast<int>(pids_.size()); r++) all &= ended(r);
    return all;
  };
  auto pause = std::chrono::microseconds(500);
  while (!all_ended() && std::chrono::steady_clock::now() - begin_ < kLimit) std::this_thread::sleep_for(pause);
  std::vector<Rank> ranks(pids_.size());
  for (std::size_t r = 0; r < ranks.size(); r++) {
    const std::string name = std::to_string(r);
    if (statuses_[r] == kRunning) {
      kill(pids_[r], SIGKILL);
      waitpid(pids_[r], nullptr, 0);
      statuses_[r] = kHung;
    }
    ranks[r].status = statuses_[r];
    ranks[r].weights = read_file(folder_ / ("weights" + name));
    ranks[r].err = read_file(folder_ / ("err" + name));
    std::istringstream lines(ranks[r].err);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("gradprobe:")) ranks[r].plugin_lines.push_back(line);
  }
  return ranks;
}

std::vector<Rank> run(const Job& job) {
  return Running(job).wait();
}

const std::string& expected_weights(const std::string& scenario) {
  static std::map<std::string, std::string> known;
  if (const auto found = known.find(scenario); found != known.end()) return found->second;
  const auto train = [&] {
    Job job;
    job.scenario = scenario;
    job.plugin = false;
    const std::vector<Rank> ranks = run(job);
    for (const Rank& r : ranks)
      if (r.status != 0 || r.weights.empty() || r.weights != ranks[0].weights)
        throw std::runtime_error("the training without the plugin failed: " + r.err);
    return ranks[0].weights;
  };
  return known[scenario] = train();
}

void expect_trained(const std::vector<Rank>& ranks, const std::string& what, const std::string& scenario) {
  for (std::size_t r = 0; r < ranks.size(); r++) {
    EXPECT_EQ(ranks[r].status, 0) << what << ", rank " << r << ":\n" << ranks[r].err;
    EXPECT_TRUE(ranks[r].weights == expected_weights(scenario)) << what << ", rank " << r << ": other weights";
  }
}

}  // namespace gradprobe::faults
