// Which NCCL a program would use, and which profiler plugin that NCCL would load.
#pragma once

#include <string>
#include <vector>

#include "command_line.hpp"
#include "environment.hpp"
#include "library_search.hpp"

namespace gradprobe::tool {

struct NcclVersion {
  int major = 0, minor = 0, patch = 0;
  std::string text;  // "2.28.9+cuda13.0"; empty: unknown
  bool known() const { return !text.empty(); }
  bool at_least(int a, int b) const { return major > a || (major == a && minor >= b); }
};

// "NCCL version 2.28.9+cuda13.0" as it stands in every NCCL; nothing for other texts that begin alike.
NcclVersion parse_banner(std::string_view text);

enum class Linkage {
  none,           // not found
  dynamic,        // a library of its own that an object names as needed
  preloaded,      // a library of its own, named by LD_PRELOAD
  static_inside,  // part of another object
  opened,         // a library of its own that the program looks for at run time (dlopen)
  on_path,        // no program was looked at: what the library search path has
};

struct Nccl {
  Linkage linkage = Linkage::none;
  std::string path;     // the file with NCCL's code
  std::string user;     // the object that needs or contains it
  std::string how;      // how `path` is found: "LD_LIBRARY_PATH", ...
  std::string missing;  // name of a needed library that isn't found
  std::string broken;   // why `path` can't be loaded
  NcclVersion version;
  // Calls can be interposed by LD_PRELOAD.
  bool interposable() const { return linkage == Linkage::dynamic || linkage == Linkage::preloaded; }
};

struct NcclSearch {
  Nccl nccl;
  std::vector<std::string> notes;  // others that were found, and what makes the answer doubtful
  bool cpu_only_torch = false;
};

// `python`: what the interpreter answered, when the program is Python.
NcclSearch find_nccl(const Program& program, const PythonPaths& python, const Environment& environment,
                     const LibrarySearch& libraries);
// Of a running process: the files mapped into it.
NcclSearch find_mapped_nccl(const std::vector<std::string>& files);

// What an object file says about NCCL; Linkage::none when nothing.
Nccl inspect_object(const std::string& path, const LibrarySearch& libraries);

// A variable as NCCL sees it: the environment, else the files that NCCL reads variables from.
struct NcclVariable {
  bool set = false;
  std::string value;
  std::string file;  // empty: the environment
};
NcclVariable nccl_variable(const std::string& name, const Environment& environment);

// The newest profiler struct that a release of NCCL knows (1 to 6); 0: it loads no profiler plugins.
int newest_profiler_struct(const NcclVersion& version);

struct PluginChoice {
  bool disabled = false;           // "none"
  bool built_in = false;           // a name that NCCL takes for a plugin linked into the program
  bool too_long = false;           // longer than NCCL's buffer
  std::string path;                // empty: not found
  std::string how;                 // how it was found
  std::string broken;              // why it can't be loaded
  std::vector<std::string> tried;  // names given to dlopen, in order
};

// What a release of NCCL makes of NCCL_PROFILER_PLUGIN. `nccl_object`: the file with NCCL's code, whose RUNPATH counts;
// may be empty.
PluginChoice resolve_plugin(const NcclVariable& setting, const NcclVersion& version, const LibrarySearch& libraries,
                            const std::string& nccl_object);

}  // namespace gradprobe::tool
