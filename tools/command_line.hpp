// What a command would start, told from its words and files without starting it.
#pragma once

#include <string>
#include <vector>

#include "environment.hpp"

namespace gradprobe::tool {

struct Program {
  std::string executable;      // the file that runs in the end; empty: none, see `error`
  std::string interpreter_of;  // the script that `executable` is the interpreter of
  bool python = false;
  bool shell_script = false;           // what it starts can't be told
  std::vector<std::string> launchers;  // programs before it, as in "mpirun -np 8 python": mpirun
  std::string error;
};

// Passes over launchers (mpirun, srun, env, nice, debuggers, ...), takes scripts for their interpreters, and puts the
// assignments of env into `environment`.
Program find_program(const std::vector<std::string>& words, Environment* environment);

// The last part of a path.
std::string base_name(const std::string& path);

// `words` as a shell would read them back.
std::string shell_words(const std::vector<std::string>& words);

struct PythonPaths {
  std::string executable;          // sys.executable: the real file behind wrappers and links
  std::vector<std::string> paths;  // sys.path
  std::string error;
};

// Asks a Python interpreter for sys.path; it imports nothing but its own start-up modules and has 30 s for it.
PythonPaths ask_python(const std::string& interpreter, const Environment& environment);

}  // namespace gradprobe::tool
