// Calls NCCL in the modes that it is told, on ranks that are processes, threads or devices of one thread, and writes
// down what it knows of each call (ledger.hpp). Ends with 0 when all results are right, with 1 when one is wrong or a
// call fails, with 3 when nothing moves any more.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

#include "modes.hpp"

namespace gradprobe::real {

const Mode* find_mode(const std::string& name) {
  static const std::vector<Mode> modes = [] {
    std::vector<Mode> all;
    for (const auto& part : {direct_modes(), graph_modes(), ending_modes(), symmetric_modes()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  const auto found = std::find_if(modes.begin(), modes.end(), [&](const Mode& m) { return m.name == name; });
  return found != modes.end() ? &*found : nullptr;
}

std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for (const auto& part : {direct_modes(), graph_modes(), ending_modes(), symmetric_modes()})
    for (const Mode& m : part) names.emplace_back(m.name);
  return names;
}

namespace {

constexpr std::chrono::seconds kStandstill{60};

enum class Ways { processes, threads, devices };

struct Settings {
  Options options;
  Ways as = Ways::processes;
  std::vector<const Mode*> modes;
};

int usage(const std::string& what) {
  std::string names;
  for (const std::string& n : mode_names()) names += " " + n;
  std::fprintf(stderr,
               "real_nccl_driver: %s\n"
               "usage: real_nccl_driver --out DIR [--ranks N] [--as processes|threads|devices] [--non-blocking]\n"
               "                        [--seed N] MODE...\nmodes:%s\n",
               what.c_str(), names.c_str());
  return 2;
}

// Empty, or what is wrong with the arguments.
std::string parse(int argc, char** argv, Settings* settings) {
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    const auto value = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (word == "--out") {
      settings->options.folder = value();
    } else if (word == "--ranks") {
      settings->options.ranks = std::atoi(value().c_str());
    } else if (word == "--seed") {
      settings->options.seed = std::strtoull(value().c_str(), nullptr, 10);
    } else if (word == "--non-blocking") {
      settings->options.blocking = false;
    } else if (word == "--as") {
      const std::string as = value();
      if (as != "processes" && as != "threads" && as != "devices")
        return "--as " + as + ": must be processes, threads or devices";
      settings->as = as == "processes" ? Ways::processes : as == "threads" ? Ways::threads : Ways::devices;
    } else if (const Mode* mode = find_mode(word); mode != nullptr) {
      settings->modes.push_back(mode);
    } else {
      return "no mode " + word;
    }
  }
  if (settings->options.folder.empty()) return "--out DIR is missing";
  if (settings->options.ranks < 2 || settings->options.ranks > Meeting::kMaxRanks) return "--ranks must be 2 to 8";
  return settings->modes.empty() ? "no mode is given" : "";
}

void run_modes(const Settings& settings, Meeting* meeting, const std::vector<int>& ranks) {
  Team team(meeting, settings.options, ranks);
  team.begin_mode("start");
  team.open("world");
  for (const Mode* mode : settings.modes) {
    team.begin_mode(mode->name);
    mode->run(team);
  }
  team.begin_mode("end");
  team.close_all();
}

// Never returns.
[[noreturn]] void run_and_exit(const Settings& settings, Meeting* meeting, const std::vector<int>& ranks) {
  const auto guarded = [&](const std::vector<int>& mine) {
    try {
      run_modes(settings, meeting, mine);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "rank %d %s: %s\n", mine.front(), meeting->doing(mine.front()).c_str(), e.what());
      std::fflush(stderr);
      _exit(1);
    }
  };
  if (settings.as != Ways::threads) {
    guarded(ranks);
  } else {
    std::vector<std::thread> threads;
    for (const int r : ranks) threads.emplace_back([&guarded, r] { guarded({r}); });
    for (std::thread& t : threads) t.join();
  }
  std::exit(0);
}

int kill_all(const std::vector<pid_t>& children, int code) {
  for (const pid_t child : children) kill(child, SIGKILL);
  while (wait(nullptr) > 0) continue;
  return code;
}

void print_doings(const Settings& settings, const Meeting& meeting) {
  for (int r = 0; r < settings.options.ranks; r++) std::fprintf(stderr, "  rank %d %s\n", r, meeting.doing(r).c_str());
}

// Waits for the ranks' processes. If one fails, all are killed: the others would wait for it for ever.
int watch(const Settings& settings, const Meeting& meeting, const std::vector<pid_t>& children) {
  using Clock = std::chrono::steady_clock;
  std::size_t left = children.size();
  std::uint64_t seen = 0;
  Clock::time_point since = Clock::now();
  while (left > 0) {
    int status = 0;
    if (const pid_t ended = waitpid(-1, &status, WNOHANG); ended > 0) {
      left--;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      if (WIFSIGNALED(status)) {
        std::fprintf(stderr, "a rank's process was killed by signal %d (%s):\n", WTERMSIG(status),
                     strsignal(WTERMSIG(status)));
        print_doings(settings, meeting);
      }
      return kill_all(children, 1);
    }
    if (const std::uint64_t now = meeting.reports(); now != seen) {
      seen = now;
      since = Clock::now();
    } else if (Clock::now() - since > kStandstill) {
      std::fprintf(stderr, "no progress for %d s:\n", static_cast<int>(kStandstill.count()));
      print_doings(settings, meeting);
      return kill_all(children, 3);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return 0;
}

int start(const Settings& settings) {
  const bool alone = settings.as == Ways::processes;
  const int n = settings.options.ranks;
  Meeting* meeting = Meeting::make(settings.as == Ways::devices ? 1 : n);
  std::vector<int> all;
  for (int r = 0; r < n; r++) all.push_back(r);
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  for (int i = 0; i < (alone ? n : 1); i++) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      run_and_exit(settings, meeting, alone ? std::vector<int>{i} : all);
    }
    if (child < 0) return kill_all(children, 1);
    children.push_back(child);
  }
  return watch(settings, *meeting, children);
}

}  // namespace
}  // namespace gradprobe::real

int main(int argc, char** argv) {
  gradprobe::real::Settings settings;
  if (const std::string wrong = gradprobe::real::parse(argc, argv, &settings); !wrong.empty())
    return gradprobe::real::usage(wrong);
  return gradprobe::real::start(settings);
}
