// Where the dynamic linker of glibc would find a library, worked out from the files (man 8 ld.so) without loading
// anything: DT_RPATH of the object that asks, LD_LIBRARY_PATH, its DT_RUNPATH, /etc/ld.so.cache, the system's folders.
// Left out: hardware-specific subfolders (glibc-hwcaps), which no NCCL package uses.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "environment.hpp"

namespace gradprobe::tool {

class ElfFile;

struct FoundLibrary {
  std::string path;    // empty: not found
  std::string how;     // "LD_LIBRARY_PATH", "RUNPATH of ...", "ld.so.cache", ...
  std::string broken;  // the linker finds the file and can't load it: why
};

class LibrarySearch {
 public:
  explicit LibrarySearch(const Environment& environment, const std::string& cache = "/etc/ld.so.cache");

  // `name` as given to dlopen or in DT_NEEDED; with a '/' it is taken as a path. `asking`: the object whose RPATH and
  // RUNPATH count, or null.
  FoundLibrary find(const std::string& name, const ElfFile* asking) const;

  // Folders of LD_LIBRARY_PATH that don't exist.
  const std::vector<std::string>& missing_folders() const { return missing_; }

 private:
  std::vector<std::string> library_path_;
  std::vector<std::string> missing_;
  std::vector<std::pair<std::string, std::string>> cache_;  // name, path; in the cache's order
};

// The name-to-path entries of a file in the format of glibc's /etc/ld.so.cache for this machine; none when it is
// missing or not in that format.
std::vector<std::pair<std::string, std::string>> read_ld_cache(const std::string& path);

// The file that a link leads to, or `path` itself when that can't be told.
std::string real_path(const std::string& path);

}  // namespace gradprobe::tool
