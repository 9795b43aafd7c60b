#include <cstdlib>

#include <fmt/format.h>

#include "command_line.hpp"
#include "doctor.hpp"
#include "library_search.hpp"
#include "nccl_search.hpp"
#include "settings.hpp"

namespace gradprobe::tool {
namespace {

// Set by tools for the programs that they start; each runs kernels one after the other.
struct SerialisingTool {
  const char* variable;
  const char* tool;
};
constexpr SerialisingTool kSerialisingTools[] = {
    {"NV_COMPUTE_PROFILER_PERFWORKS_DIR", "Nsight Compute"},
    {"NV_SANITIZER_INJECTION_PORT_BASE", "compute-sanitizer"},
    {"NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN", "compute-sanitizer"},
};

void check_switches(const Environment& environment, Diagnosis* diagnosis) {
  if (environment.value("GRADPROBE") == "0")
    diagnosis->problem("GRADPROBE", Blocks::switched_off, "GRADPROBE=0: the plugin loads, measures and writes nothing",
                       "unset GRADPROBE");
  if (const auto blocking = environment.value("CUDA_LAUNCH_BLOCKING");
      blocking && std::strtol(blocking->c_str(), nullptr, 10) != 0 && !preload_is_set(environment))
    diagnosis->problem(
        "launches", Blocks::serialised,
        fmt::format("CUDA_LAUNCH_BLOCKING={}: the plugin can only measure collectives in CUDA graphs", *blocking),
        "unset CUDA_LAUNCH_BLOCKING, or use the preload library (gradprobe run --preload)");
  for (const SerialisingTool& tool : kSerialisingTools) {
    if (!environment.has(tool.variable)) continue;
    diagnosis->problem(
        "launches", Blocks::serialised,
        fmt::format("{} is at work ({} is set): it runs kernels one after the other", tool.tool, tool.variable),
        fmt::format("start without {}", tool.tool));
  }
  if (const auto injected = environment.value("CUDA_INJECTION64_PATH"))
    diagnosis->note("launches",
                    fmt::format("a CUDA tool is loaded into the process (CUDA_INJECTION64_PATH={}); should it "
                                "make launches wait, measuring is switched off and the log says so",
                                *injected));
}

void check_messages(const Environment& environment, Diagnosis* diagnosis) {
  const NcclVariable debug = nccl_variable("NCCL_DEBUG", environment);
  if (debug.value.empty())
    diagnosis->note("messages",
                    "NCCL_DEBUG is not set: NCCL doesn't say which plugin it loads; "
                    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV makes it");
  if (environment.value("GRADPROBE_LOG") == "off")
    diagnosis->note("messages", "GRADPROBE_LOG=off: warnings of the plugin are not shown");
}

void check_other_variables(const Environment& environment, Diagnosis* diagnosis) {
  const LibrarySearch libraries(environment);
  for (const std::string& folder : libraries.missing_folders())
    diagnosis->note("libraries", fmt::format("LD_LIBRARY_PATH names {}, which is no folder", folder));
  for (const std::string& part : split(environment.value("LD_PRELOAD").value_or(""), ' ')) {
    for (const std::string& entry : split(part, ':')) {
      if (entry.empty()) continue;
      const FoundLibrary found = libraries.find(entry, nullptr);
      const bool ours = base_name(entry) == kPreloadFile;
      if (!found.path.empty() && found.broken.empty()) {
        if (ours) diagnosis->ok("preload", fmt::format("LD_PRELOAD: {}", found.path));
        continue;
      }
      const std::string text =
          fmt::format("LD_PRELOAD names {}, which {}", entry, found.path.empty() ? "is not found" : found.broken);
      if (ours)
        diagnosis->problem("preload", Blocks::plugin_setting, text,
                           "give its full path, or use gradprobe run --preload");
      else
        diagnosis->note("preload", text);
    }
  }
  for (const char* variable : {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"})
    if (environment.has(variable))
      diagnosis->note("devices",
                      fmt::format("{} is set: if ranks share a device through MPS, measuring shares it too; a "
                                  "smaller GRADPROBE_MAX_CTAS leaves them more",
                                  variable));
}

}  // namespace

void check_environment(const Environment& environment, Diagnosis* diagnosis) {
  check_switches(environment, diagnosis);
  for (const SettingProblem& problem : check_settings(environment))
    diagnosis->problem("variable", find_setting(problem.name) != nullptr ? Blocks::value : Blocks::unknown_name,
                       problem.text, problem.advice);
  check_messages(environment, diagnosis);
  check_other_variables(environment, diagnosis);
}

}  // namespace gradprobe::tool
