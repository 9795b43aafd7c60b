// Runs a command as if it had been started in this process's place: same terminal, same files, same signals.
#pragma once

#include <string>
#include <vector>

namespace gradprobe::tool {

struct CommandEnd {
  int exit_code = 0;  // as a shell gives it: the command's, 128 + signal, 127 not found, 126 not executable
  std::string error;  // it could not be started: why
  bool started() const { return error.empty(); }
};

// `environment`: "NAME=value" strings. Returns when the command has ended. Signals that other processes send to this
// one (HUP, INT, QUIT, TERM, USR1, USR2) are passed on; those of the terminal reach the command by themselves, since it
// stays in the process group. It is killed when this process is.
CommandEnd run_command(const std::vector<std::string>& words, const std::vector<std::string>& environment);

}  // namespace gradprobe::tool
