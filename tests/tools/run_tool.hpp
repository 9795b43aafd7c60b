// Runs the gradprobe executable and keeps what it printed.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gradprobe::test {

// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradprobe-tool-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

struct Outcome {
  int exit_code = -1;  // 1000 + signal when killed
  std::string out, err;
};

inline const std::string kClosed = "closed";

// What a process has otherwise than this one.
struct Surroundings {
  std::vector<std::string> environment;  // "NAME=value" sets, "NAME" unsets
  std::string folder;                    // working folder
  std::string program = GRADPROBE_TOOL;
};

// A gradprobe process; its output goes to files, or to `stdout_path` and `stderr_path`; kClosed closes them.
class Tool {
 public:
  explicit Tool(const std::vector<std::string>& arguments, const std::string& stdout_path = {},
                const std::string& stderr_path = {}, const Surroundings& surroundings = {}) {
    out_path_ = stdout_path.empty() ? folder_ / "out" : stdout_path;
    std::vector<std::string> words = {surroundings.program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    err_path_ = stderr_path.empty() ? folder_ / "err" : stderr_path;
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      redirect(STDOUT_FILENO, out_path_, O_APPEND);
      redirect(STDERR_FILENO, err_path_, O_TRUNC);
      surround(surroundings);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Tool() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;

  void signal(int number) const { kill(pid_, number); }
  pid_t pid() const { return pid_; }
  std::string output_so_far() const { return contents(out_path_); }

  // Waits until `text` was printed; false after ten seconds.
  bool printed(const std::string& text) const {
    for (int i = 0; i < 1000; i++) {
      if (output_so_far().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  Outcome wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    Outcome o;
    o.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    if (std::filesystem::is_regular_file(out_path_)) o.out = contents(out_path_);
    if (std::filesystem::is_regular_file(err_path_)) o.err = contents(err_path_);
    return o;
  }

 private:
  static void surround(const Surroundings& surroundings) {
    for (const std::string& entry : surroundings.environment) {
      const std::size_t equals = entry.find('=');
      if (equals == std::string::npos)
        unsetenv(entry.c_str());
      else
        setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
    }
    if (!surroundings.folder.empty() && chdir(surroundings.folder.c_str()) != 0) _exit(126);
  }
  static void redirect(int to, const std::string& path, int flags) {
    if (path == kClosed) {
      close(to);
      return;
    }
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    dup2(fd, to);
  }

  TemporaryFolder folder_;
  std::string out_path_, err_path_;
  pid_t pid_ = -1;
};

inline Outcome run_tool(const std::vector<std::string>& arguments, const Surroundings& surroundings = {}) {
  return Tool(arguments, {}, {}, surroundings).wait();
}

}  // namespace gradprobe::test
