// A rank as a process of its own. The argument says what happens beside the training.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include <gradprobe/ring_format.hpp>

#include "training.hpp"

namespace gradprobe::faults {
namespace {

constexpr int kSteps = 3;
constexpr int kWrong = 4;  // exit code: the scenario's own check failed

[[noreturn]] void wrong(const std::string& what) {
  std::fprintf(stderr, "rank: %s\n", what.c_str());
  std::_Exit(kWrong);
}

// Threads of this process that the plugin named.
int collectors() {
  int n = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    n += name == "gradprobe";
  }
  return n;
}

// The content of this process's rings but for the heartbeat.
std::map<std::string, std::string> rings() {
  std::map<std::string, std::string> contents;
  const std::string mine = "-p" + std::to_string(getpid());
  if (!std::filesystem::exists(std::getenv("GRADPROBE_DIR"))) return contents;
  for (const auto& entry : std::filesystem::directory_iterator(std::getenv("GRADPROBE_DIR"))) {
    if (entry.path().string().find(mine) == std::string::npos) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    bytes.erase(sizeof(FileHeader) + offsetof(LiveCounters, heartbeat_ns), sizeof(std::uint64_t));
    contents[entry.path()] = bytes;
  }
  return contents;
}

void steps(Training* t, int from = 0, int to = kSteps) {
  for (int i = from; i < to; i++) {
    if (i == 1) t->capture();
    t->step(i);
  }
}

void train(Training* t) {
  t->join();
  steps(t);
  t->leave();
}

// The plugin is closed and opened again with the last and the first communicator.
void again(Training* t) {
  for (int round = 0; round < 3; round++) {
    t->join(round);
    steps(t);
    t->leave();
    if (std::getenv("FAULTS_COLLECTORS") != nullptr && collectors() != 1)
      wrong(std::to_string(collectors()) + " collector threads");
  }
}

void destroy_in_flight(Training* t) {
  t->join();
  t->put_gradients(0);
  for (int i = 0; i < 20; i++) t->all_reduce(static_cast<std::size_t>(i) % kBuckets);
  t->leave();
  t->take_gradients();
}

// The last rank never joins the others' collective.
void abort(Training* t) {
  t->join();
  t->step(0);
  const bool last = t->rank() == number("FAULTS_RANKS", 1) - 1;
  if (!last) t->all_reduce(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  t->abort();
}

// Children that end by exit handlers and without; the rings don't change.
void fork_after_init(Training* t) {
  t->join();
  steps(t, 0, 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the collector has read what there is
  const auto before = rings();
  for (const bool handlers : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      if (handlers) std::exit(0);
      std::_Exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) wrong("the child ended with status " + std::to_string(status));
  }
  if (std::getenv("FAULTS_RINGS") != nullptr && before.empty()) wrong("no rings");
  if (rings() != before) wrong("the child changed the rings");
  steps(t, 2);
  t->leave();
}

void exit_on_another_thread(Training* t) {
  t->join();
  steps(t);
  t->save();
  std::thread([] { std::exit(0); }).detach();
  for (;;) pause();
}

void exec(Training* t, const char* self) {
  t->join();
  steps(t);
  t->save();
  execl(self, self, "after_exec", static_cast<char*>(nullptr));
  wrong("exec failed");
}

int after_exec() {
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (const auto target = std::filesystem::read_symlink(fd, ignored);
        target.string().find(".ring") != std::string::npos)
      wrong("inherited " + target.string());
  }
  return 0;
}

void kill_one(Training* t) {
  t->join();
  steps(t, 0, 2);
  if (t->rank() == 1) raise(SIGKILL);
  steps(t, 2);
  t->leave();
}

Training* g_training = nullptr;

// As frameworks do whose own exit handlers destroy the communicators, after the plugin's.
void destroy_in_exit_handler(Training* t) {
  g_training = t;
  std::atexit([] { g_training->leave(); });
  t->join();
  steps(t);
  t->save();
  std::exit(0);
}

// A signal handler that ends the process, wherever it came. The signal itself: FAULTS_SIGNAL.
void exit_in_signal_handler(Training* t) {
  struct sigaction action {};
  action.sa_handler = [](int) { std::exit(7); };
  sigaction(SIGTERM, &action, nullptr);
  train(t);
}

// NCCL's launch fails in the second step: new communicators, and the step again.
void start_again_after_failure(Training* t) {
  t->join();
  t->step(0);
  if (t->try_step(1)) wrong("no launch failed");
  t->abort();
  t->join(1);
  steps(t, 1);
  t->leave();
}

// Tells when the second step's first collective is over.
void mark(Training* t) {
  t->join();
  t->step(0);
  t->step(1, [t] {
    FAULTS_CHECK(cuStreamSynchronize(t->stream()));
    std::ofstream(std::string(std::getenv("FAULTS_FOLDER")) + "/done" + std::to_string(t->rank())) << "x";
  });
  t->step(2);
  t->leave();
}

int run(const std::string& scenario, const char* self) {
  if (scenario == "after_exec") return after_exec();
  if (scenario == "fork_before_init") {
    const pid_t child = fork();
    if (child != 0) {
      int status = 0;
      waitpid(child, &status, 0);
      return WIFEXITED(status) ? WEXITSTATUS(status) : kWrong;
    }
  }
  auto* t = new Training;  // exit handlers may still use it
  if (scenario == "train" || scenario == "fork_before_init")
    train(t);
  else if (scenario == "again")
    again(t);
  else if (scenario == "destroy_in_flight")
    destroy_in_flight(t);
  else if (scenario == "abort")
    abort(t);
  else if (scenario == "fork_after_init")
    fork_after_init(t);
  else if (scenario == "exit_on_another_thread")
    exit_on_another_thread(t);
  else if (scenario == "exec")
    exec(t, self);
  else if (scenario == "kill_one")
    kill_one(t);
  else if (scenario == "destroy_in_exit_handler")
    destroy_in_exit_handler(t);
  else if (scenario == "exit_in_signal_handler")
    exit_in_signal_handler(t);
  else if (scenario == "start_again_after_failure")
    start_again_after_failure(t);
  else if (scenario == "mark")
    mark(t);
  else
    wrong("unknown scenario " + scenario);
  t->save();
  return 0;
}

}  // namespace
}  // namespace gradprobe::faults

int main(int argc, char** argv) {
  return gradprobe::faults::run(argc > 1 ? argv[1] : "train", argv[0]);
}
