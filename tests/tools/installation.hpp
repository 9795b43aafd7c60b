// A copy of the tool with the files that are installed beside it, and the folders that its tests are about.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "run_tool.hpp"

namespace gradprobe::test {

inline const std::string kDoctorFiles = GRADPROBE_DOCTOR_FILES;
inline const std::string kStandin = GRADPROBE_STANDIN_FOLDER;
inline const std::string kPluginName = "libnccl-profiler-gradprobe.so";

// PREFIX/bin/gradprobe, PREFIX/lib/ with the plugin and the preload library.
class Installation {
 public:
  explicit Installation(bool plugin = true, bool preload = true, const std::string& below = "") {
    namespace fs = std::filesystem;
    prefix_ = fs::canonical(folder_.path()).string() + below;
    fs::create_directories(prefix_ + "/bin");
    fs::create_directories(prefix_ + "/lib");
    fs::copy_file(GRADPROBE_TOOL, prefix_ + "/bin/gradprobe");
    if (plugin) fs::copy_file(GRADPROBE_PLUGIN, this->plugin());
    if (preload) fs::copy_file(kDoctorFiles + "/preload/libgradprobe-preload.so", this->preload());
  }
  std::string tool() const { return prefix_ + "/bin/gradprobe"; }
  std::string plugin() const { return prefix_ + "/lib/" + kPluginName; }
  std::string preload() const { return prefix_ + "/lib/libgradprobe-preload.so"; }
  const std::string& prefix() const { return prefix_; }

 private:
  TemporaryFolder folder_;
  std::string prefix_;
};

// Variables of whoever runs the tests that would change what they see.
inline std::vector<std::string> neutral_environment() {
  return {"NCCL_PROFILER_PLUGIN",
          "NCCL_DEBUG",
          "GRADPROBE",
          "GRADPROBE_DIR",
          "GRADPROBE_JOB",
          "SLURM_JOB_ID",
          "SLURM_PROCID",
          "RANK",
          "WORLD_SIZE",
          "TORCHELASTIC_RUN_ID",
          "PMIX_NAMESPACE",
          "CUDA_LAUNCH_BLOCKING",
          "CUDA_VISIBLE_DEVICES",
          "CUDA_INJECTION64_PATH",
          "LD_PRELOAD",
          "PYTHONPATH",
          "NCCL_CONF_FILE",
          "HOME=/nonexistent",
          "LD_LIBRARY_PATH=" + kStandin};
}

}  // namespace gradprobe::test
