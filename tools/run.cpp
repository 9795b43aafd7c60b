#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "child_process.hpp"
#include "command_line.hpp"
#include "commands.hpp"
#include "control_file.hpp"
#include "doctor.hpp"
#include "library_search.hpp"
#include "nccl_search.hpp"
#include "output.hpp"
#include "ring_files.hpp"
#include "settings.hpp"

namespace gradprobe::tool {
namespace fs = std::filesystem;
namespace {

// This process's place in a job whose launcher started one for each rank.
struct Place {
  std::uint64_t rank = 0, size = 1;
  bool one_of_many() const { return size > 1; }
};

Place place_in(const Environment& environment) {
  constexpr std::pair<const char*, const char*> kLaunchers[] = {
      {"RANK", "WORLD_SIZE"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
      // The batch step of sbatch, in which srun is called, has one task.
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
  };
  const auto number = [&](const char* name, std::uint64_t* value) {
    const auto text = environment.value(name);
    return text && std::from_chars(text->data(), text->data() + text->size(), *value).ec == std::errc();
  };
  for (const auto& [rank, size] : kLaunchers) {
    Place place;
    if (number(rank, &place.rank) && number(size, &place.size) && place.rank < place.size) return place;
  }
  return {};
}

// A name that all ranks of a job have in common and no other job has; empty when the launcher gives none.
std::string job_name(const Environment& environment) {
  for (const char* name : {"GRADPROBE_JOB", "TORCHELASTIC_RUN_ID"}) {
    const auto value = environment.value(name);
    if (value && *value != "none") return *value;  // torchrun's id is "none" unless one is given
  }
  if (const auto job = environment.value("SLURM_JOB_ID"))
    return "slurm-" + *job + "." + environment.value("SLURM_STEP_ID").value_or("0");
  return environment.value("PMIX_NAMESPACE").value_or("");
}

std::string file_name(std::string text) {
  for (char& c : text)
    if (c == '/' || static_cast<unsigned char>(c) <= ' ') c = '_';
  return text;
}

class Run {
 public:
  Run(const RunOptions& options, Environment environment)
      : options_(options),
        environment_(std::move(environment)),
        files_(installed_files()),
        place_(place_in(environment_)) {}

  int run() {
    if (!set_variables() || !choose_folder()) return kExitError;
    if (!place_.one_of_many() || place_.rank == 0) say_what_changed();
    const CommandEnd end = run_command(options_.command, environment_.entries());
    if (!end.started()) {
      print_note("run: " + end.error +
                 (end.exit_code == 127 ? "; check its spelling and PATH" : "; check that it is an executable file"));
      if (created_) ::rmdir(folder_.c_str());
      return end.exit_code;
    }
    if (!options_.quiet && place_.rank == 0) report();
    return end.exit_code;
  }

 private:
  bool fail(const std::string& text) {
    print_note("run: " + text);
    return false;
  }

  bool set_variables() {
    for (const auto& [name, value] : options_.settings) {
      const Setting* setting = find_setting(name);
      if (setting != nullptr && !setting->usable(value))
        return fail(fmt::format("{}={} is not {}; nothing was run", name, value, setting->wanted));
      environment_.set(name, value);
    }
    if (files_.plugin.empty())
      return fail(fmt::format("no {} beside this tool ({}); install gradprobe again", kPluginFile,
                              files_.looked_in.empty() ? "" : files_.looked_in.front()));
    if (options_.preload && !add_preload()) return false;
    return set_plugin();
  }

  bool add_preload() {
    if (files_.preload.empty())
      return fail(fmt::format("--preload: no {} beside {}; install gradprobe again", kPreloadFile, files_.plugin));
    const auto before = environment_.value("LD_PRELOAD");
    environment_.set("LD_PRELOAD", before ? *before + ":" + files_.preload : files_.preload);
    return true;
  }

  bool set_plugin() {
    const auto before = environment_.value("NCCL_PROFILER_PLUGIN");
    const bool ours = !before || *before == "gradprobe" || base_name(*before) == kPluginFile;
    if (!ours && options_.chain) {
      if (!chain(*before)) return false;
    } else if (!ours) {
      changes_.push_back(fmt::format("NCCL_PROFILER_PLUGIN was {}; gradprobe takes its place{}", *before,
                                     *before == "none" ? "" : ", --chain keeps both"));
    }
    constexpr std::size_t kLongest = 254;  // NCCL keeps 255 bytes of the name, its end included
    if (files_.plugin.size() <= kLongest) {
      environment_.set("NCCL_PROFILER_PLUGIN", files_.plugin);
      return true;
    }
    const std::string folder = fs::path(files_.plugin).parent_path().string();
    const auto path = environment_.value("LD_LIBRARY_PATH");
    environment_.set("LD_LIBRARY_PATH", path ? folder + ":" + *path : folder);
    environment_.set("NCCL_PROFILER_PLUGIN", kPluginFile);
    return true;
  }

  // The user's plugin as a path: the name's completion is NCCL's, not dlopen's.
  bool chain(const std::string& name) {
    NcclVariable setting;
    setting.set = true;
    setting.value = name;
    const PluginChoice choice = resolve_plugin(setting, NcclVersion(), LibrarySearch(environment_), "");
    if (choice.path.empty())
      return fail(
          fmt::format("--chain: NCCL_PROFILER_PLUGIN={}: no such plugin on the library search path; set it to the "
                      "plugin's file, or leave --chain out",
                      name));
    const std::string path = fs::absolute(choice.path).lexically_normal().string();
    environment_.set("GRADPROBE_CHAIN", path);
    changes_.push_back(fmt::format("your profiler plugin {} is loaded behind gradprobe", path));
    return true;
  }

  bool choose_folder() {
    std::string wanted = options_.folder;
    if (wanted.empty()) wanted = environment_.value("GRADPROBE_DIR").value_or("");
    if (wanted.empty()) {
      const std::string job = place_.one_of_many() ? job_name(environment_) : std::string();
      if (place_.one_of_many() && job.empty())
        return fail(
            fmt::format("this is rank {} of {} and the launcher gives the job no name, so the ranks can't agree on a "
                        "folder; add --dir DIR",
                        place_.rank, place_.size));
      const std::time_t now = std::time(nullptr);
      std::tm local{};
      localtime_r(&now, &local);
      wanted =
          "gradprobe-runs/" + (job.empty() ? fmt::format("{:%Y%m%d-%H%M%S}-{}", local, ::getpid()) : file_name(job));
    }
    // The command may change its folder before it creates communicators.
    folder_ = fs::absolute(wanted).lexically_normal().string();
    while (folder_.size() > 1 && folder_.ends_with('/')) folder_.pop_back();
    if (!make_folder() || !is_fresh()) return false;
    environment_.set("GRADPROBE_DIR", folder_);
    return true;
  }

  bool make_folder() {
    std::error_code ec;
    const fs::path parent = fs::path(folder_).parent_path();
    fs::create_directories(parent, ec);
    if (::mkdir(folder_.c_str(), 0700) == 0) {
      created_ = true;
      return true;
    }
    const int error = errno;
    if (fs::is_directory(folder_, ec) && ::access(folder_.c_str(), W_OK | X_OK) == 0) return true;
    return fail(
        fmt::format("{}: can't create the folder: {}; give another one with --dir", folder_,
                    std::strerror(error == EEXIST ? (fs::is_directory(folder_, ec) ? EACCES : ENOTDIR) : error)));
  }

  // The other ranks of a job may have begun: only a run of its own can ask for an empty folder.
  bool is_fresh() {
    std::error_code ec;
    std::size_t others = 0;
    for (fs::directory_iterator it(folder_, ec), end; !ec && it != end; it.increment(ec))
      if (it->path().filename() != kControlFile) others++;
    if (others == 0 || place_.one_of_many()) return true;
    return fail(
        fmt::format("{}: holds {} file(s) already, and two runs in one folder would be mixed up; give a new one with "
                    "--dir",
                    folder_, others));
  }

  void say_what_changed() {
    print_note(fmt::format("this run is recorded in {}", folder_));
    for (const std::string& change : changes_) print_note(change);
  }

  // Standard output is the command's alone: a summary in it would spoil what scripts read from there.
  void report() {
    try {
      const OutputTo here(stderr);
      wait_for_other_ranks();
      const RingFiles found = open_rings(folder_);
      if (found.readers.empty()) {
        say_why_empty(found);
        return;
      }
      const bool any_values = std::any_of(found.readers.begin(), found.readers.end(),
                                          [](const RingReader& ring) { return ring.counters().measured > 0; });
      if (!any_values && say_what_to_fix("nothing was measured")) return;
      CompareOptions compare_options;
      compare_options.path = folder_;
      compare_options.summary = true;
      compare(compare_options);
      print_note(fmt::format("more: gradprobe compare {}", shell_words({folder_})));
      flush_output();
    } catch (const OutputClosed&) {
      // Nobody is left to tell; the exit code is the command's all the same.
    }
  }

  // Ranks end one after the other.
  void wait_for_other_ranks() const {
    constexpr auto kPatience = std::chrono::seconds(5);
    if (!place_.one_of_many()) return;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      const RingFiles found = open_rings(folder_);
      const bool running = std::any_of(found.readers.begin(), found.readers.end(), [](const RingReader& ring) {
        return is_running(writer_of(ring, ring.counters()));
      });
      if (!running) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void say_why_empty(const RingFiles& found) {
    std::error_code ec;
    const bool any_ring = std::any_of(fs::directory_iterator(folder_, ec), fs::directory_iterator(),
                                      [](const auto& entry) { return entry.path().extension() == ".ring"; });
    if (any_ring) {
      print_note(found.error);
      return;
    }
    if (say_what_to_fix("nothing was recorded")) return;
    const std::string comms = environment_.value("GRADPROBE_COMMS").value_or("");
    const std::string left_out =
        comms.empty() || comms == "all" ? "" : fmt::format(" or GRADPROBE_COMMS={} leaves all of them out,", comms);
    print_note(
        fmt::format("nothing was recorded: no NCCL communicator of two or more ranks was made,{} as far as can be "
                    "told; NCCL_DEBUG=INFO shows what NCCL and gradprobe did",
                    left_out));
  }

  // The doctor's first advice; false when it has none.
  bool say_what_to_fix(std::string_view outcome) {
    Patient patient;
    patient.command = options_.command;
    patient.environment = environment_;
    const Diagnosis diagnosis = diagnose(patient);
    if (diagnosis.fixes().empty()) return false;
    const Fix& fix = diagnosis.fixes().front();
    print_note(fmt::format("{}. {} -> {}; gradprobe doctor -- {}", outcome, fix.problem, fix.action,
                           shell_words(options_.command)));
    return true;
  }

  const RunOptions& options_;
  Environment environment_;
  InstalledFiles files_;
  Place place_;
  std::string folder_;
  bool created_ = false;
  std::vector<std::string> changes_;
};

}  // namespace

int run(const RunOptions& options) {
  return Run(options, Environment::of_this_process()).run();
}

}  // namespace gradprobe::tool
