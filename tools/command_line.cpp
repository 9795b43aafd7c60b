#include "command_line.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "library_search.hpp"
#include "output.hpp"
#include "subprocess.hpp"

namespace gradprobe::tool {
namespace {

// Programs that start the program named behind their own options.
constexpr std::string_view kLaunchers[] = {"env",
                                           "mpirun",
                                           "mpiexec",
                                           "mpiexec.hydra",
                                           "orterun",
                                           "prun",
                                           "srun",
                                           "nice",
                                           "ionice",
                                           "nohup",
                                           "numactl",
                                           "taskset",
                                           "timeout",
                                           "stdbuf",
                                           "setsid",
                                           "time",
                                           "nsys",
                                           "ncu",
                                           "sudo",
                                           "unshare",
                                           "strace",
                                           "ltrace",
                                           "gdb",
                                           "cuda-gdb",
                                           "valgrind",
                                           "perf",
                                           "exec",
                                           "xvfb-run",
                                           "compute-sanitizer",
                                           "cuda-memcheck"};

bool is_launcher(const std::string& name) {
  return std::find(std::begin(kLaunchers), std::end(kLaunchers), name) != std::end(kLaunchers);
}

bool is_shell(const std::string& name) {
  constexpr std::string_view kShells[] = {"sh", "bash", "dash", "zsh", "ksh", "fish"};
  return std::find(std::begin(kShells), std::end(kShells), name) != std::end(kShells);
}

bool is_python(const std::string& name) {
  std::string_view rest(name);
  if (rest.starts_with("python")) {
    rest.remove_prefix(6);
  } else if (rest.starts_with("pypy")) {
    rest.remove_prefix(4);
  } else {
    return false;
  }
  if (rest.ends_with('t')) rest.remove_suffix(1);  // the free-threaded build
  return std::all_of(rest.begin(), rest.end(), [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
}

// The words behind "#!"; none when the file isn't a script.
std::vector<std::string> script_interpreter(const std::string& path) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec)) return {};
  std::ifstream in(path, std::ios::binary);
  char bytes[256] = {};
  in.read(bytes, sizeof bytes - 1);
  std::string_view line(bytes);
  if (!line.starts_with("#!")) return {};
  line = line.substr(2, std::min(line.find('\n'), line.size()) - 2);
  std::vector<std::string> words;
  for (std::string& word : split(line, ' '))
    if (!word.empty()) words.push_back(std::move(word));
  return words;
}

bool is_assignment(const std::string& word) {
  const std::size_t equals = word.find('=');
  return equals != std::string::npos && equals > 0 && word[0] != '-';
}

// The word behind the launcher at `at` that names a program; words.size() when there is none.
std::size_t next_program(const std::vector<std::string>& words, std::size_t at, Environment* environment) {
  const bool assigns = base_name(words[at]) == "env";
  std::string ignored;
  for (std::size_t i = at + 1; i < words.size(); i++) {
    const std::string& word = words[i];
    if (assigns && is_assignment(word)) {
      const std::size_t equals = word.find('=');
      environment->set(word.substr(0, equals), word.substr(equals + 1));
      continue;
    }
    if (assigns && word == "-u" && i + 1 < words.size()) {
      environment->remove(words[++i]);
      continue;
    }
    if (word.empty() || word[0] == '-' || word.find('=') != std::string::npos) continue;
    if (!find_executable(word, *environment, &ignored).empty()) return i;
    // env's first word without '=' is the command, found or not.
    if (assigns) return i;
  }
  return words.size();
}

// Version managers put shell scripts in the place of Python's programs, those of launchers and of Python alike.
void take_python_beside(Program* program) {
  constexpr std::string_view kPythonPrograms[] = {"torchrun", "accelerate", "deepspeed", "horovodrun", "colossalai"};
  const std::string name = base_name(program->interpreter_of);
  if (std::find(std::begin(kPythonPrograms), std::end(kPythonPrograms), name) == std::end(kPythonPrograms)) return;
  const std::string folder = program->interpreter_of.substr(0, program->interpreter_of.size() - name.size());
  for (const char* python : {"python", "python3"}) {
    std::string why;
    const std::string beside = find_executable(folder + python, Environment(), &why);
    if (folder.empty() || beside.empty()) continue;
    program->executable = beside;
    program->python = true;
    program->shell_script = false;
    return;
  }
}

}  // namespace

std::string base_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::string shell_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 ||
             std::string_view("-_=./,:@%+").find(static_cast<char>(c)) != std::string_view::npos;
    });
    std::string quoted = word;
    for (std::size_t at = 0; (at = quoted.find('\'', at)) != std::string::npos; at += 4) quoted.replace(at, 1, "'\\''");
    text += (text.empty() ? "" : " ") + (plain ? word : "'" + quoted + "'");
  }
  return text;
}

Program find_program(const std::vector<std::string>& words, Environment* environment) {
  Program program;
  std::size_t at = 0;
  for (; at < words.size() && is_launcher(base_name(words[at]));) {
    const std::size_t next = next_program(words, at, environment);
    if (next == words.size()) break;
    program.launchers.push_back(base_name(words[at]));
    at = next;
  }
  if (at >= words.size()) {
    program.error = "no command";
    return program;
  }
  program.executable = find_executable(words[at], *environment, &program.error);
  if (program.executable.empty()) return program;
  program.python = is_python(base_name(words[at]));
  if (program.python) return program;
  const std::vector<std::string> interpreter = script_interpreter(program.executable);
  if (interpreter.empty()) {
    program.shell_script = is_shell(base_name(words[at]));
    return program;
  }
  std::string name = interpreter[0];
  if (base_name(name) == "env") {
    const auto word = std::find_if(interpreter.begin() + 1, interpreter.end(),
                                   [](const std::string& w) { return w[0] != '-' && !is_assignment(w); });
    if (word != interpreter.end()) name = *word;
  }
  std::string why;
  const std::string found = find_executable(name, *environment, &why);
  if (found.empty()) {
    program.error = program.executable + " is a script for " + name + "; " + why;
    program.executable.clear();
    return program;
  }
  program.interpreter_of = program.executable;
  program.executable = found;
  program.python = is_python(base_name(name));
  program.shell_script = is_shell(base_name(name));
  if (program.shell_script) take_python_beside(&program);
  return program;
}

PythonPaths ask_python(const std::string& interpreter, const Environment& environment) {
  constexpr std::chrono::seconds kLimit(30);
  PythonPaths answer;
  const ChildOutcome outcome =
      run_program(kLimit, interpreter, {"-B", "-c", "import sys\nprint(sys.executable)\nfor p in sys.path: print(p)"},
                  environment.entries());
  if (!outcome.ok()) {
    answer.error = describe(outcome, kLimit);
    return answer;
  }
  const std::vector<std::string> lines = split(outcome.output, '\n');
  if (lines.empty()) {
    answer.error = "said nothing";
    return answer;
  }
  answer.executable = real_path(lines[0]);
  for (std::size_t i = 1; i < lines.size(); i++)
    if (!lines[i].empty()) answer.paths.push_back(lines[i]);
  return answer;
}

}  // namespace gradprobe::tool
