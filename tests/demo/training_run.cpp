#include "training_run.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace gradprobe::demo {
namespace {

constexpr std::chrono::seconds kLimit(120);

// The group's processes end with it, so that a test that gives up leaves nothing running.
int wait_for(pid_t pid) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(-pid, SIGKILL);
      waitpid(pid, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const Environment& extra) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!extra.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : extra) result.push_back(name + "=" + value);
  return result;
}

}  // namespace

TemporaryFolder::TemporaryFolder() : path_(testing::TempDir() + "gradprobe-demo-XXXXXX") {
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Outcome run_program(const std::vector<std::string>& command, const Environment& extra) {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  const std::string err = folder / "err";
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = environment_with(extra);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, arguments[0].c_str(), &actions, &attributes, pointers(arguments).data(),
                                pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw std::runtime_error("can't start " + arguments[0]);
  const int status = wait_for(pid);
  return {status, read_file(out), read_file(err)};
}

Outcome train(const std::vector<std::string>& arguments, const Environment& extra) {
  std::vector<std::string> command = {GRADPROBE_DEMO_TRAIN, "--quiet"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Environment environment = {{"NCCL_PROFILER_PLUGIN", "none"}, {"NCCL_DEBUG", "WARN"}};
  for (const auto& [name, value] : extra) environment[name] = value;
  return run_program(command, environment);
}

Outcome train_measured(const std::vector<std::string>& arguments, const std::string& rings, const Environment& extra) {
  // The stand-in's device is never behind the host, so on a loaded machine a gate can wait for a host thread's turn.
  Environment environment = {{"NCCL_PROFILER_PLUGIN", GRADPROBE_PLUGIN},
                             {"GRADPROBE_DIR", rings},
                             {"GRADPROBE_RING_MB", "4"},
                             {"GRADPROBE_GATE_TIMEOUT", "5000"}};
  for (const auto& [name, value] : extra) environment[name] = value;
  return train(arguments, environment);
}

Outcome gradprobe_tool(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {GRADPROBE_TOOL};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_program(command, {});
}

std::string read_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("can't read " + file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<nlohmann::json> read_json_lines(const std::string& text) {
  std::vector<nlohmann::json> objects;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) objects.push_back(nlohmann::json::parse(line));
  return objects;
}

std::map<std::uint32_t, Ring> read_rings(const std::string& folder) {
  std::map<std::uint32_t, Ring> rings;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    RingReader::Opened opened = RingReader::open(entry.path());
    if (!opened.reader) {
      ADD_FAILURE() << opened.error;
      continue;
    }
    Ring ring;
    ring.header = opened.reader->header();
    ring.counters = opened.reader->counters();
    RingCursor cursor(*opened.reader);
    for (Record record; cursor.next(record) == Next::record;) ring.records.push_back(record);
    EXPECT_EQ(cursor.losses().corrupt_count, 0u) << entry.path();
    EXPECT_TRUE(rings.emplace(ring.header.rank, std::move(ring)).second) << entry.path();
  }
  return rings;
}

int count_lines(const std::string& text, const std::vector<std::string>& words) {
  int count = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    count += std::all_of(words.begin(), words.end(),
                         [&](const std::string& word) { return line.find(word) != std::string::npos; })
                 ? 1
                 : 0;
  }
  return count;
}

}  // namespace gradprobe::demo
