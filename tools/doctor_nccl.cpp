#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <gradprobe/no_events.hpp>

#include "command_line.hpp"
#include "doctor.hpp"
#include "elf_file.hpp"
#include "library_search.hpp"
#include "nccl_search.hpp"
#include "subprocess.hpp"

namespace gradprobe::tool {
namespace fs = std::filesystem;
namespace {

constexpr int kNewestOwnStruct = 7;

bool is_preload_library(const std::string& path) {
  return base_name(path) == kPreloadFile;
}

std::string plugin_version(const ElfFile& file) {
  const std::string_view begin = kPluginVersionText;
  return file.find_text(begin, [&](std::string_view text) { return std::string(text.substr(begin.size())); });
}

// The newest profiler struct up to `known` that a library has; 0: none.
int newest_struct(const ElfFile& file, int known) {
  while (known > 0 && !file.defines(fmt::format("ncclProfiler_v{}", known))) known--;
  return known;
}

// Everything about NCCL and the plugin, with what later checks need from earlier ones.
class NcclCheck {
 public:
  NcclCheck(const Patient& patient, Environment* environment, Diagnosis* diagnosis)
      : patient_(patient), environment_(*environment), diagnosis_(*diagnosis), installed_(installed_files()) {}

  void run() {
    if (patient_.pid != 0)
      look_at_process();
    else
      look_at_command();
    if (patient_.command.empty() && patient_.pid == 0)
      diagnosis_.note("command",
                      "none given, so NCCL is looked for on the library search path; give yours: gradprobe doctor -- "
                      "torchrun train.py");
    report_nccl();
    check_plugin_file();
    check_setting();
    check_chain();
  }

 private:
  void look_at_command() {
    if (!patient_.command.empty()) {
      program_ = find_program(patient_.command, &environment_);
      report_program();
      if (program_.python) {
        python_ = ask_python(program_.executable, environment_);
        if (!python_.error.empty())
          diagnosis_.problem("command", Blocks::command,
                             fmt::format("{}, asked for its module path, {}", program_.executable, python_.error),
                             fmt::format("check that this works: {} -c 'import sys'", program_.executable));
      }
    }
    libraries_.emplace(environment_);
    found_ = find_nccl(program_, python_, environment_, *libraries_);
  }

  void report_program() {
    if (program_.executable.empty()) {
      diagnosis_.problem("command", Blocks::command, program_.error,
                         "check the command's spelling and PATH, or activate its environment");
      return;
    }
    std::string text = program_.executable;
    if (!program_.interpreter_of.empty()) text += ", interpreter of " + program_.interpreter_of;
    if (!program_.launchers.empty()) text += ", started by " + shell_words(program_.launchers);
    diagnosis_.ok("command", text + " (not run, only looked at)");
    if (program_.shell_script)
      diagnosis_.note("command", "a shell script: what it starts can't be told; give the command inside it");
    for (const std::string& launcher : program_.launchers) {
      if (launcher == "ncu" || launcher == "compute-sanitizer" || launcher == "cuda-gdb" || launcher == "cuda-memcheck")
        diagnosis_.problem("command", Blocks::serialised,
                           launcher + " runs kernels one after the other, which leaves no moment to measure in",
                           "start the command without " + launcher);
    }
  }

  void look_at_process() {
    std::set<std::string> files;
    std::error_code ec;
    const std::string executable = fs::read_symlink(fmt::format("/proc/{}/exe", patient_.pid), ec).string();
    diagnosis_.ok("command", fmt::format("process {}: {}", patient_.pid, ec ? "executable unknown" : executable));
    std::ifstream maps(fmt::format("/proc/{}/maps", patient_.pid));
    for (std::string line; std::getline(maps, line);)
      if (const std::size_t slash = line.find('/'); slash != std::string::npos) files.insert(line.substr(slash));
    if (files.empty())
      diagnosis_.problem("command", Blocks::command, fmt::format("the files of process {} can't be seen", patient_.pid),
                         "run doctor as the user of that process");
    // In a container the names are those of its own file system.
    const std::string root = fmt::format("/proc/{}/root", patient_.pid);
    std::vector<std::string> seen_from_here;
    for (const std::string& file : files) {
      const bool same = fs::exists(file, ec) && fs::equivalent(file, root + file, ec) && !ec;
      seen_from_here.push_back(same ? file : root + file);
      plugin_is_mapped_ |= base_name(file) == kPluginFile;
      preload_is_mapped_ |= is_preload_library(file);
    }
    libraries_.emplace(environment_);
    found_ = find_mapped_nccl(seen_from_here);
  }

  void report_nccl() {
    const Nccl& nccl = found_.nccl;
    for (const std::string& note : found_.notes) diagnosis_.note("NCCL", note);
    if (nccl.linkage == Linkage::none) {
      report_no_nccl();
      return;
    }
    if (nccl.path.empty()) {
      const std::string text = fmt::format("{} {} {}, which the linker doesn't find", nccl.user,
                                           nccl.linkage == Linkage::opened ? "opens" : "needs", nccl.missing);
      diagnosis_.problem("NCCL", Blocks::nccl, text,
                         "install NCCL, or add the folder of " + nccl.missing + " to LD_LIBRARY_PATH");
      return;
    }
    if (!nccl.broken.empty()) {
      diagnosis_.problem("NCCL", Blocks::nccl, fmt::format("{} ({}) {}", nccl.path, nccl.how, nccl.broken),
                         "reinstall NCCL, or take that file's folder off the search path");
      return;
    }
    const std::string version = nccl.version.known() ? nccl.version.text : std::string("of unknown version");
    diagnosis_.ok("NCCL", version + ", " + linkage_in_words());
    if (!nccl.version.known()) {
      diagnosis_.note("NCCL", nccl.path + " doesn't tell its version; 2.28 or newer is needed");
      return;
    }
    check_version();
  }

  void report_no_nccl() {
    if (found_.cpu_only_torch) {
      diagnosis_.problem("NCCL", Blocks::nccl, "this PyTorch is built without CUDA, so it has no NCCL",
                         "install a CUDA build of PyTorch in the environment of " + program_.executable);
      return;
    }
    if (patient_.pid != 0) {
      diagnosis_.problem("NCCL", Blocks::nccl, "not loaded in this process (yet)",
                         "look again when the process has made its first communicator, or give a rank's process");
      return;
    }
    std::string where = "libnccl.so.2 is not on the library search path";
    if (program_.python)
      where = "no package of " + program_.executable + " brings or needs NCCL";
    else if (!program_.executable.empty() && !program_.shell_script)
      where = program_.executable + " neither needs, opens nor contains NCCL";
    if (program_.shell_script || (patient_.command.empty() && patient_.pid == 0))
      diagnosis_.note("NCCL", where);
    else
      diagnosis_.problem("NCCL", Blocks::nccl, where,
                         "give the command that trains (its own interpreter or program), or install NCCL there");
  }

  std::string linkage_in_words() const {
    const Nccl& nccl = found_.nccl;
    switch (nccl.linkage) {
      case Linkage::dynamic:
        return fmt::format("linked dynamically: {} (by {}), needed by {}", nccl.path, nccl.how, nccl.user);
      case Linkage::preloaded:
        return fmt::format("preloaded: {} (by LD_PRELOAD)", nccl.path);
      case Linkage::static_inside:
        return fmt::format("linked statically, inside {}", nccl.path);
      case Linkage::opened:
        return patient_.pid != 0
                   ? fmt::format("{} ({})", nccl.path, nccl.how)
                   : fmt::format("opened at run time: {} (by {}), for {}", nccl.path, nccl.how, nccl.user);
      case Linkage::on_path:
        return fmt::format("what a program would load: {} (by {})", nccl.path, nccl.how);
      case Linkage::none:
        break;
    }
    return "not found";
  }

  void check_version() {
    const Nccl& nccl = found_.nccl;
    if (nccl.version.at_least(2, 28)) return;
    const bool by_preload = nccl.version.at_least(2, 8);
    const bool interposable = nccl.interposable() || nccl.linkage == Linkage::on_path;
    if (by_preload && interposable && preload_active()) {
      diagnosis_.ok("NCCL", fmt::format("older than 2.28: measured through {}", kPreloadFile));
      return;
    }
    const std::string text =
        fmt::format("{} tells profiler plugins nothing before a launch (2.28 and newer do), so nothing can be measured",
                    nccl.version.text);
    std::string action = "update NCCL to 2.28 or newer";
    if (!by_preload) {
      // Too old for the other way as well.
    } else if (!interposable && patient_.pid == 0) {
      action += fmt::format(" (a build that brings it: {} can't reach an NCCL that is {})", kPreloadFile,
                            nccl.linkage == Linkage::static_inside ? "linked statically" : "opened at run time");
    } else if (installed_.preload.empty()) {
      action += fmt::format(" (or install {}, which measures with older ones, beside the plugin)", kPreloadFile);
    } else {
      action = fmt::format("export LD_PRELOAD={} (or gradprobe run --preload), or update NCCL to 2.28 or newer",
                           installed_.preload);
    }
    diagnosis_.problem("NCCL", Blocks::nccl_version, text, action);
  }

  bool preload_active() const { return preload_is_mapped_ || (patient_.pid == 0 && preload_is_set(environment_)); }

  void check_plugin_file() {
    constexpr std::chrono::seconds kLimit(30);
    if (installed_.plugin.empty()) {
      std::string folders;
      for (const std::string& folder : installed_.looked_in) folders += (folders.empty() ? "" : ", ") + folder;
      diagnosis_.problem("plugin", Blocks::plugin_file, fmt::format("no {} in {}", kPluginFile, folders),
                         "install gradprobe again: cmake --install BUILD --prefix PREFIX");
      return;
    }
    const ElfFile::Opened opened = ElfFile::open(installed_.plugin);
    if (!opened.file) {
      report_bad_plugin(opened.error);
      return;
    }
    const ChildOutcome outcome = in_child(kLimit, [&]() -> std::string {
      if (dlopen(installed_.plugin.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return "ok";
      const char* why = dlerror();
      return why != nullptr ? why : "unknown reason";
    });
    if (!outcome.ok()) {
      report_bad_plugin("when loaded, " + describe(outcome, kLimit));
      return;
    }
    if (outcome.output != "ok") {
      report_bad_plugin("can't be loaded: " + outcome.output);
      return;
    }
    std::string needs;
    for (const std::string& library : opened.file->needed()) needs += (needs.empty() ? "" : ", ") + library;
    const std::string version = plugin_version(*opened.file);
    diagnosis_.ok("plugin", fmt::format("{}, version {}, loads, needs {}", installed_.plugin,
                                        version.empty() ? "unknown" : version, needs.empty() ? "nothing" : needs));
    if (!version.empty() && version != GRADPROBE_VERSION)
      diagnosis_.note("plugin", fmt::format("this tool is version {}: install both from one build", GRADPROBE_VERSION));
  }

  void report_bad_plugin(const std::string& why) {
    diagnosis_.problem("plugin", Blocks::plugin_file, installed_.plugin + " " + why,
                       "install gradprobe again, built on this machine or an older system");
  }

  std::string export_plugin() const {
    const std::string& plugin = installed_.plugin.empty() ? std::string(kPluginFile) : installed_.plugin;
    constexpr std::size_t kLongest = 254;
    if (plugin.size() <= kLongest) return "export NCCL_PROFILER_PLUGIN=" + plugin;
    return fmt::format("export LD_LIBRARY_PATH={}:$LD_LIBRARY_PATH NCCL_PROFILER_PLUGIN={}",
                       fs::path(plugin).parent_path().string(), kPluginFile);
  }

  void setting_problem(const std::string& text, const std::string& action = {}) {
    diagnosis_.problem("setting", Blocks::plugin_setting, text,
                       action.empty() ? export_plugin() + "   (gradprobe run -- COMMAND does it)" : action);
  }

  void check_setting() {
    const NcclVersion& version = found_.nccl.version;
    const NcclVariable setting = nccl_variable("NCCL_PROFILER_PLUGIN", environment_);
    std::string shown = setting.set ? "NCCL_PROFILER_PLUGIN=" + setting.value : "NCCL_PROFILER_PLUGIN is not set";
    if (!setting.file.empty()) shown += " (in " + setting.file + "; the environment goes first)";
    if (version.known() && newest_profiler_struct(version) == 0) {
      diagnosis_.note("setting", fmt::format("NCCL {} loads no profiler plugins", version.text));
      return;
    }
    if (preload_active() && !setting.set) {
      diagnosis_.note("setting", shown + "; the preload library measures without it");
      return;
    }
    if (patient_.pid != 0 && plugin_is_mapped_) {
      diagnosis_.ok("setting", shown + ": the plugin is loaded");
      return;
    }
    const PluginChoice choice = resolve_plugin(setting, version, *libraries_, found_.nccl.path);
    std::string tried;
    for (const std::string& name : choice.tried) tried += (tried.empty() ? "" : " and no ") + name;
    if (choice.disabled) {
      setting_problem(shown + " switches profiler plugins off");
    } else if (choice.built_in) {
      setting_problem(shown + ": NCCL takes this name for a plugin linked into the program");
    } else if (choice.too_long) {
      setting_problem(
          shown + " is longer than the 254 characters that NCCL keeps",
          fmt::format("export LD_LIBRARY_PATH=FOLDER:$LD_LIBRARY_PATH NCCL_PROFILER_PLUGIN={}", kPluginFile));
    } else if (choice.path.empty()) {
      const bool name_only = setting.set && version.known() && !version.at_least(2, 26);
      setting_problem(fmt::format("{}: dlopen finds no {}{}", shown, tried,
                                  name_only ? fmt::format("; NCCL {} doesn't complete names", version.text) : ""));
    } else if (!choice.broken.empty()) {
      setting_problem(fmt::format("{}: {} {}", shown, choice.path, choice.broken));
    } else {
      check_chosen(shown, choice);
    }
    if (patient_.pid != 0 && found_.nccl.linkage != Linkage::none)
      diagnosis_.note("setting", "the plugin is not loaded in this process; NCCL loads it with the first communicator");
  }

  void check_chosen(const std::string& shown, const PluginChoice& choice) {
    const ElfFile::Opened opened = ElfFile::open(choice.path);
    if (!opened.file) return;
    const ElfFile& file = *opened.file;
    const int known = found_.nccl.version.known() ? newest_profiler_struct(found_.nccl.version) : kNewestOwnStruct;
    const int used = newest_struct(file, known);
    if (used == 0) {
      setting_problem(fmt::format("{}: {} is no profiler plugin for NCCL {}", shown, choice.path,
                                  found_.nccl.version.known() ? found_.nccl.version.text : "2.23 or newer"));
      return;
    }
    const bool ours = base_name(real_path(choice.path)) == kPluginFile || !plugin_version(file).empty();
    if (!ours) {
      setting_problem(fmt::format("{} loads another profiler plugin: {} (by {})", shown, choice.path, choice.how),
                      fmt::format("{} GRADPROBE_CHAIN={}   (both are then loaded)", export_plugin(),
                                  fs::absolute(choice.path).string()));
      return;
    }
    diagnosis_.ok("setting", fmt::format("{}: {} (by {}), interface v{}{}", shown, choice.path, choice.how, used,
                                         found_.nccl.version.known() ? "" : " at most"));
    if (found_.nccl.version.known() && used >= 5)
      diagnosis_.note("setting",
                      fmt::format("NCCL {} announces these calls and reports no launch, so they stay unmeasured "
                                  "(no_events): {}. It reports no calls of communicators of one rank",
                                  found_.nccl.version.text, no_events_causes(static_cast<std::uint32_t>(used))));
    if (!installed_.plugin.empty() && real_path(choice.path) != real_path(installed_.plugin))
      diagnosis_.note("setting",
                      fmt::format("this is not the plugin that was installed with this tool ({})", installed_.plugin));
  }

  void check_chain() {
    const auto chain = environment_.value("GRADPROBE_CHAIN");
    if (!chain) return;
    // The plugin looks it up as NCCL 2.26 and later do.
    NcclVariable setting;
    setting.set = true;
    setting.value = *chain;
    const PluginChoice found = resolve_plugin(setting, NcclVersion(), *libraries_, "");
    if (found.path.empty() || !found.broken.empty()) {
      diagnosis_.problem("chain", Blocks::value,
                         fmt::format("GRADPROBE_CHAIN={}: {}", *chain,
                                     found.path.empty() ? "no such library for this machine" : found.broken),
                         "set GRADPROBE_CHAIN to the second plugin's file, or unset it");
      return;
    }
    const ElfFile::Opened opened = ElfFile::open(found.path);
    if (opened.file && !plugin_version(*opened.file).empty()) {
      diagnosis_.problem("chain", Blocks::value, fmt::format("GRADPROBE_CHAIN={} is gradprobe itself", *chain),
                         "unset GRADPROBE_CHAIN, or set it to the other plugin's file");
      return;
    }
    if (opened.file && newest_struct(*opened.file, kNewestOwnStruct) == 0) {
      diagnosis_.problem("chain", Blocks::value, fmt::format("GRADPROBE_CHAIN={} is no profiler plugin", found.path),
                         "unset GRADPROBE_CHAIN, or set it to the other plugin's file");
      return;
    }
    diagnosis_.ok("chain", "GRADPROBE_CHAIN: " + found.path + " is loaded behind gradprobe");
  }

  const Patient& patient_;
  Environment& environment_;
  Diagnosis& diagnosis_;
  InstalledFiles installed_;
  Program program_;
  PythonPaths python_;
  std::optional<LibrarySearch> libraries_;
  NcclSearch found_;
  bool plugin_is_mapped_ = false, preload_is_mapped_ = false;
};

}  // namespace

bool preload_is_set(const Environment& environment) {
  for (const std::string& part : split(environment.value("LD_PRELOAD").value_or(""), ' '))
    for (const std::string& entry : split(part, ':'))
      if (is_preload_library(entry)) return true;
  return false;
}

void check_nccl_and_plugin(const Patient& patient, Environment* environment, Diagnosis* diagnosis) {
  NcclCheck(patient, environment, diagnosis).run();
}

}  // namespace gradprobe::tool
