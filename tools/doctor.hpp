// gradprobe doctor: facts about a training command's surroundings, and what to fix, most blocking first.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "environment.hpp"

namespace gradprobe::tool {

enum class Status { ok, note, problem };
const char* name(Status status);

// In the order in which things must work.
enum class Blocks {
  command,
  nccl,
  driver,
  nccl_version,
  plugin_file,
  plugin_setting,
  switched_off,
  serialised,
  folder,
  value,
  unknown_name
};

struct Fact {
  Status status;
  std::string topic, text;
};

struct Fix {
  Blocks blocks;
  std::string problem, action;
};

class Diagnosis {
 public:
  void ok(const std::string& topic, const std::string& text) { facts_.push_back({Status::ok, topic, text}); }
  void note(const std::string& topic, const std::string& text) { facts_.push_back({Status::note, topic, text}); }
  void problem(const std::string& topic, Blocks blocks, const std::string& text, const std::string& action);

  const std::vector<Fact>& facts() const { return facts_; }
  const std::vector<Fix>& fixes() const { return fixes_; }  // most blocking first, in the order found where equal

 private:
  std::vector<Fact> facts_;
  std::vector<Fix> fixes_;
};

struct Patient {
  std::vector<std::string> command;  // empty: none given
  Environment environment;
  pid_t pid = 0;  // a running process instead of a command
};

// Runs nothing of the user's: files are read; a Python interpreter is asked for sys.path; the CUDA driver, the
// gradprobe plugin and a NCCL whose text tells no version are loaded in child processes with a time limit.
Diagnosis diagnose(const Patient& patient);

// The parts of diagnose().
void check_nccl_and_plugin(const Patient& patient, Environment* environment, Diagnosis* diagnosis);
void check_driver(const Environment& environment, Diagnosis* diagnosis);
void check_environment(const Environment& environment, Diagnosis* diagnosis);
void check_folder(const Patient& patient, const Environment& environment, Diagnosis* diagnosis);

// The plugin and the preload library that were installed with this tool.
struct InstalledFiles {
  std::string plugin, preload;         // empty: not there
  std::vector<std::string> looked_in;  // folders
};
InstalledFiles installed_files();

inline constexpr const char* kPluginFile = "libnccl-profiler-gradprobe.so";
inline constexpr const char* kPreloadFile = "libgradprobe-preload.so";

// LD_PRELOAD names the preload library.
bool preload_is_set(const Environment& environment);

// The text in the plugin's file that its version follows.
inline constexpr const char* kPluginVersionText = "gradprobe plugin version ";

}  // namespace gradprobe::tool
