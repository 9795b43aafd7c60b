// gradprobe doctor: each kind of problem is found, the advice removes it, and nothing of the user's is run.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

#include <nlohmann/json.hpp>

#include "installation.hpp"

namespace gradprobe::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kNeeds = kDoctorFiles + "/bin/needs";

struct Diagnosis {
  int exit_code = -1;
  Json json;

  // Texts of the facts with this status and topic, one a line.
  std::string facts(const std::string& status, const std::string& topic) const {
    std::string all;
    for (const Json& fact : json["facts"])
      if (fact["status"] == status && fact["topic"] == topic) all += fact["text"].get<std::string>() + "\n";
    return all;
  }
  std::size_t fixes() const { return json["fixes"].size(); }
  std::string problem(std::size_t i = 0) const {
    return i < fixes() ? json["fixes"][i]["problem"].get<std::string>() : "";
  }
  std::string action(std::size_t i = 0) const {
    return i < fixes() ? json["fixes"][i]["action"].get<std::string>() : "";
  }
};

class Doctor : public testing::Test {
 protected:
  Diagnosis look(const Words& command, const Words& environment = {}, const Words& options = {}) {
    return look_with(installed_, command, environment, options);
  }
  static Diagnosis look_with(const Installation& installed, const Words& command, const Words& environment = {},
                             const Words& options = {}) {
    Surroundings around;
    around.program = installed.tool();
    around.environment = neutral_environment();
    around.environment.insert(around.environment.end(), environment.begin(), environment.end());
    Words words = {"doctor", "--json"};
    words.insert(words.end(), options.begin(), options.end());
    if (!command.empty()) words.emplace_back("--");
    words.insert(words.end(), command.begin(), command.end());
    const Outcome outcome = run_tool(words, around);
    Diagnosis d;
    d.exit_code = outcome.exit_code;
    d.json = Json::parse(outcome.out, nullptr, false);
    EXPECT_FALSE(d.json.is_discarded()) << outcome.out << outcome.err;
    if (d.json.is_discarded()) d.json = {{"facts", Json::array()}, {"fixes", Json::array()}};
    EXPECT_EQ(d.exit_code, d.fixes() == 0 ? 0 : 1) << outcome.out << outcome.err;
    return d;
  }
  // The plugin by its path, and a driver.
  Words with_plugin(const std::string& nccl = "") {
    return {"NCCL_PROFILER_PLUGIN=" + installed_.plugin(), libraries(nccl)};
  }
  static std::string libraries(const std::string& nccl) {
    return "LD_LIBRARY_PATH=" + (nccl.empty() ? "" : kDoctorFiles + "/nccl-" + nccl + ":") + kStandin;
  }
  static Words plus(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string script(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    fs::permissions(folder_ / name, fs::perms::owner_all);
    return folder_ / name;
  }

  Installation installed_;
  TemporaryFolder folder_;
};

TEST_F(Doctor, FindsNothingToFix) {
  const Diagnosis d = look({kNeeds, "--lr", "0.1"}, with_plugin("2.28.9"));
  EXPECT_EQ(d.fixes(), 0u) << d.json;
  EXPECT_EQ(d.facts("ok", "NCCL"), "2.28.9+cuda12.9, linked dynamically: " + kDoctorFiles +
                                       "/nccl-2.28.9/libnccl.so.2 (by LD_LIBRARY_PATH), needed by " + kNeeds + "\n");
  EXPECT_NE(d.facts("ok", "plugin").find(installed_.plugin() + ", version " GRADPROBE_VERSION ", loads"),
            std::string::npos)
      << d.json;
  EXPECT_NE(d.facts("ok", "driver").find(kStandin + "/libcuda.so.1, CUDA 13.0"), std::string::npos) << d.json;
  EXPECT_EQ(d.facts("ok", "devices"), "4 x Stand-in device (compute capability 8.0)\n");
}

TEST_F(Doctor, PrintsATableAndWhatToFix) {
  Surroundings around;
  around.program = installed_.tool();
  around.environment = plus(neutral_environment(), {libraries("2.28.9"), "GRADPROBE=0"});
  const Outcome o = run_tool({"doctor", "--", kNeeds}, around);
  EXPECT_EQ(o.exit_code, 1);
  EXPECT_NE(o.out.find("\nTo fix, most blocking first:\n  1. setting:"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("     -> export NCCL_PROFILER_PLUGIN=" + installed_.plugin()), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("  2. GRADPROBE:"), std::string::npos) << o.out;
  EXPECT_EQ(o.err, "");
}

// Releases of NCCL: which interface they use, and what measures with them.
TEST_F(Doctor, KnowsWhatEachReleaseCanDo) {
  struct Release {
    const char* version;
    int interface;  // 0: loads no plugin
    const char* action;
  };
  const std::string preload = "export LD_PRELOAD=" + installed_.preload();
  for (const Release& r : {Release{"2.7.8", 0, "update NCCL to 2.28 or newer"},
                           {"2.18.5", 0, preload.c_str()},
                           {"2.23.4", 1, preload.c_str()},
                           {"2.24.3", 2, preload.c_str()},
                           {"2.26.2", 3, preload.c_str()},
                           {"2.27.5", 4, preload.c_str()},
                           {"2.28.9", 5, nullptr},
                           {"2.29.7", 6, nullptr},
                           {"2.30.7", 6, nullptr},
                           {"2.31.2", 7, nullptr},
                           {"2.32.3", 7, nullptr}}) {
    const Diagnosis d = look({kNeeds}, with_plugin(r.version));
    EXPECT_NE(d.facts("ok", "NCCL").find(std::string(r.version) + "+cuda12.9"), std::string::npos) << d.json;
    EXPECT_EQ(d.fixes(), r.action == nullptr ? 0u : 1u) << r.version << d.json;
    if (r.action != nullptr) {
      EXPECT_EQ(d.action().rfind(r.action, 0), 0u) << d.json;
    }
    // What this release launches without telling.
    const std::string notes = d.facts("note", "setting");
    EXPECT_EQ(notes.find("broadcasts") != std::string::npos, r.interface >= 6) << r.version << d.json;
    EXPECT_EQ(notes.find("symmetric kernels") != std::string::npos, r.interface == 5 || r.interface == 6)
        << r.version << d.json;
    EXPECT_EQ(notes.find("one rank") != std::string::npos, r.interface >= 5) << r.version << d.json;
    if (r.interface == 0) {
      EXPECT_NE(d.facts("note", "setting").find("loads no profiler plugins"), std::string::npos) << d.json;
    } else {
      EXPECT_NE(d.facts("ok", "setting").find("interface v" + std::to_string(r.interface)), std::string::npos)
          << d.json;
    }
  }
  // What was advised is enough.
  const Diagnosis done =
      look({"env", "LD_PRELOAD=" + installed_.preload(), kNeeds}, {libraries("2.27.5"), "NCCL_PROFILER_PLUGIN"});
  EXPECT_EQ(done.fixes(), 0u) << done.json;
  // Without the library there is nothing to preload.
  const Installation bare(true, false);
  const Diagnosis d = look_with(bare, {kNeeds}, {libraries("2.27.5"), "NCCL_PROFILER_PLUGIN=" + bare.plugin()});
  EXPECT_EQ(d.action().find("export LD_PRELOAD"), std::string::npos) << d.json;
  EXPECT_EQ(d.action().rfind("update NCCL", 0), 0u) << d.json;
}

// An NCCL inside a program can't be reached by a preloaded library.
TEST_F(Doctor, KnowsHowNcclIsLinked) {
  const Diagnosis inside = look({kDoctorFiles + "/bin/contains"}, with_plugin());
  EXPECT_EQ(inside.facts("ok", "NCCL"),
            "2.27.5+cuda12.9, linked statically, inside " + kDoctorFiles + "/bin/contains\n");
  EXPECT_NE(inside.action().find("can't reach an NCCL that is linked statically"), std::string::npos) << inside.json;

  const Diagnosis opened = look({kDoctorFiles + "/bin/opens"}, with_plugin("2.30.7"));
  EXPECT_NE(opened.facts("ok", "NCCL").find("2.30.7+cuda12.9, opened at run time"), std::string::npos) << opened.json;
  EXPECT_EQ(opened.fixes(), 0u) << opened.json;

  const Diagnosis none = look({kDoctorFiles + "/bin/lacks"}, with_plugin("2.30.7"));
  EXPECT_NE(none.problem().find("neither needs, opens nor contains NCCL"), std::string::npos) << none.json;

  const Diagnosis on_path = look({}, with_plugin("2.30.7"));
  EXPECT_NE(on_path.facts("ok", "NCCL").find("2.30.7+cuda12.9, what a program would load"), std::string::npos);
  EXPECT_NE(on_path.facts("note", "command").find("none given"), std::string::npos) << on_path.json;

  const std::string nccl = kDoctorFiles + "/nccl-2.29.7/libnccl.so.2";
  const Diagnosis preloaded = look({"env", "LD_PRELOAD=" + nccl, kNeeds}, with_plugin("2.27.5"));
  EXPECT_NE(preloaded.facts("ok", "NCCL").find("2.29.7+cuda12.9, preloaded: " + nccl), std::string::npos)
      << preloaded.json;
}

// The stand-in has no banner: it is loaded and asked.
TEST_F(Doctor, AsksALibraryThatDoesNotTell) {
  const Diagnosis d = look({kNeeds}, plus(with_plugin(), {"STANDIN_NCCL_VERSION=2.26.5"}));
  EXPECT_NE(d.facts("ok", "NCCL").find("2.26.5, linked dynamically: " + kStandin), std::string::npos) << d.json;
  EXPECT_NE(d.facts("ok", "setting").find("interface v3"), std::string::npos) << d.json;
}

TEST_F(Doctor, FindsNcclThatIsMissingOrDamaged) {
  fs::create_directory(folder_ / "cut");
  const std::string good = contents(kDoctorFiles + "/nccl-2.28.9/libnccl.so.2");
  for (const std::string& bytes : {good.substr(0, 5000), good.substr(0, 70), std::string("text"), std::string()}) {
    std::ofstream(folder_ / "cut/libnccl.so.2", std::ios::binary | std::ios::trunc) << bytes;
    const Diagnosis d = look({kNeeds}, plus(with_plugin(), {"LD_LIBRARY_PATH=" + (folder_ / "cut") + ":" + kStandin}));
    EXPECT_EQ(d.problem().rfind("NCCL: " + (folder_ / "cut/libnccl.so.2") + " (LD_LIBRARY_PATH) ", 0), 0u)
        << bytes.size() << d.json;
  }
  // What is no file is passed over, as the linker does.
  fs::remove(folder_ / "cut/libnccl.so.2");
  ASSERT_EQ(mkfifo((folder_ / "cut/libnccl.so.2").c_str(), 0600), 0);
  const Diagnosis pipe = look({kNeeds}, plus(with_plugin(), {"LD_LIBRARY_PATH=" + (folder_ / "cut") + ":" + kStandin}));
  EXPECT_NE(pipe.facts("ok", "NCCL").find(kStandin), std::string::npos) << pipe.json;
}

// Lookup of NCCL_PROFILER_PLUGIN as the releases' sources have it: 2.23 to 2.25 take the name as it is, 2.26 and later
// also complete it, 2.28 and later know "none".
TEST_F(Doctor, ResolvesTheSettingAsNcclDoes) {
  const std::string in_lib = ":" + installed_.prefix() + "/lib";
  struct Case {
    const char* version;
    std::string value;
    bool found;
  };
  for (const Case& c : {Case{"2.24.3", "gradprobe", false},
                        {"2.24.3", kPluginName, true},
                        {"2.24.3", installed_.plugin(), true},
                        {"2.26.2", "gradprobe", true},
                        {"2.28.9", "gradprobe", true},
                        {"2.30.7", "gradprobe", true},
                        {"2.30.7", kPluginName, true},
                        {"2.30.7", "./gradprobe", false},
                        {"2.30.7", "gradprobes", false},
                        {"2.30.7", "none", false},
                        {"2.30.7", "NONE", false},
                        {"2.30.7", "", false},
                        {"2.30.7", "static", false},
                        {"2.30.7", installed_.prefix() + "/lib", false}}) {
    const Diagnosis d = look({kNeeds}, {libraries(c.version) + in_lib, "NCCL_PROFILER_PLUGIN=" + c.value});
    EXPECT_EQ(!d.facts("ok", "setting").empty(), c.found) << c.version << " " << c.value << d.json;
    if (!c.found) {
      EXPECT_NE(d.json["fixes"].dump().find("export NCCL_PROFILER_PLUGIN=" + installed_.plugin()), std::string::npos)
          << d.json;
    }
  }
  // Unset: libnccl-profiler.so, which may be a link to the plugin.
  fs::create_symlink(installed_.plugin(), folder_ / "libnccl-profiler.so");
  const Diagnosis linked = look({kNeeds}, {libraries("2.28.9") + ":" + folder_.path()});
  EXPECT_EQ(linked.fixes(), 0u) << linked.json;
  // NCCL keeps 254 characters.
  const std::string deep = folder_ / (std::string(200, 'd'));
  fs::create_directories(deep);
  fs::copy_file(installed_.plugin(), deep + "/" + std::string(60, 'p') + ".so");
  const Diagnosis d =
      look({kNeeds}, {libraries("2.28.9"), "NCCL_PROFILER_PLUGIN=" + deep + "/" + std::string(60, 'p') + ".so"});
  EXPECT_NE(d.problem().find("longer than the 254 characters"), std::string::npos) << d.json;
}

TEST_F(Doctor, ReadsNcclsOwnFiles) {
  std::ofstream(folder_ / ".nccl.conf") << "# ours\nNCCL_DEBUG=INFO\nNCCL_PROFILER_PLUGIN=none\n";
  const Diagnosis d = look({kNeeds}, {libraries("2.28.9"), "HOME=" + folder_.path()});
  EXPECT_NE(d.problem().find(".nccl.conf"), std::string::npos) << d.json;
  EXPECT_NE(d.problem().find("switches profiler plugins off"), std::string::npos) << d.json;
  EXPECT_EQ(d.facts("note", "messages"), "") << d.json;
  // The environment goes first.
  EXPECT_EQ(look({kNeeds}, plus(with_plugin("2.28.9"), {"HOME=" + folder_.path()})).fixes(), 0u);
}

TEST_F(Doctor, KeepsAnotherPlugin) {
  const std::string other = kDoctorFiles + "/plugins/libnccl-profiler-other.so";
  const Diagnosis d = look({kNeeds}, {libraries("2.28.9"), "NCCL_PROFILER_PLUGIN=" + other});
  EXPECT_NE(d.problem().find("loads another profiler plugin: " + other), std::string::npos) << d.json;
  EXPECT_NE(d.action().find("GRADPROBE_CHAIN=" + other), std::string::npos) << d.json;
  EXPECT_EQ(look({kNeeds}, plus(with_plugin("2.28.9"), {"GRADPROBE_CHAIN=" + other})).fixes(), 0u);
  EXPECT_EQ(look({kNeeds}, {libraries("2.28.9") + ":" + kDoctorFiles + "/plugins", "GRADPROBE_CHAIN=other",
                            "NCCL_PROFILER_PLUGIN=" + installed_.plugin()})
                .fixes(),
            0u);
  for (const std::string& wrong : {installed_.plugin(), folder_ / "missing.so", folder_.path(), std::string("others"),
                                   kDoctorFiles + "/nccl-2.28.9/libnccl.so.2"}) {
    const Diagnosis chain = look({kNeeds}, plus(with_plugin("2.28.9"), {"GRADPROBE_CHAIN=" + wrong}));
    EXPECT_EQ(chain.problem().rfind("chain: ", 0), 0u) << chain.json;
  }
  const std::string no_plugin = kDoctorFiles + "/nccl-2.28.9/libnccl.so.2";
  const Diagnosis none = look({kNeeds}, {libraries("2.28.9"), "NCCL_PROFILER_PLUGIN=" + no_plugin});
  EXPECT_NE(none.problem().find("is no profiler plugin"), std::string::npos) << none.json;
}

TEST_F(Doctor, FindsAMissingOrDamagedPlugin) {
  const Installation none(false, false);
  EXPECT_NE(look_with(none, {kNeeds}, {libraries("2.28.9")}).problem().find("plugin: no " + kPluginName),
            std::string::npos);
  const std::string good = contents(installed_.plugin());
  for (const std::size_t length : {std::size_t{0}, std::size_t{40}, good.size() / 2}) {
    std::ofstream(none.plugin(), std::ios::binary | std::ios::trunc) << good.substr(0, length);
    const Diagnosis d = look_with(none, {kNeeds}, {libraries("2.28.9"), "NCCL_PROFILER_PLUGIN=" + none.plugin()});
    EXPECT_EQ(d.problem().rfind("plugin: " + none.plugin(), 0), 0u) << length << d.json;
  }
}

TEST_F(Doctor, FindsVariablesThatSwitchMeasuringOff) {
  struct Case {
    std::string variable, problem, action;
  };
  for (const Case& c :
       {Case{"GRADPROBE=0", "GRADPROBE=0", "unset GRADPROBE"},
        {"CUDA_LAUNCH_BLOCKING=1", "CUDA_LAUNCH_BLOCKING=1", "unset CUDA_LAUNCH_BLOCKING"},
        {"NV_COMPUTE_PROFILER_PERFWORKS_DIR=/x", "Nsight Compute", "start without Nsight Compute"},
        {"NV_SANITIZER_INJECTION_PORT_BASE=1", "compute-sanitizer", "start without compute-sanitizer"},
        {"GRADPROBE_SKETCH=1000", "GRADPROBE_SKETCH=1000 is not one of 0, 256", "set GRADPROBE_SKETCH to one of"},
        {"GRADPROBE_RING_MB=32MB", "GRADPROBE_RING_MB=32MB is not a whole number", "set GRADPROBE_RING_MB"},
        {"GRADPROBE_SKTECH=512", "GRADPROBE_SKTECH is read by nobody",
         "unset GRADPROBE_SKTECH; export GRADPROBE_SKETCH=512"},
        {"GRADPROBE_COLOUR=red", "GRADPROBE_COLOUR is read by nobody", "unset GRADPROBE_COLOUR"}}) {
    const Diagnosis d = look({kNeeds}, plus(with_plugin("2.28.9"), {c.variable}));
    EXPECT_EQ(d.fixes(), 1u) << c.variable << d.json;
    EXPECT_NE(d.problem().find(c.problem), std::string::npos) << d.json;
    EXPECT_EQ(d.action().rfind(c.action, 0), 0u) << d.json;
  }
  for (const char* harmless : {"CUDA_LAUNCH_BLOCKING=0", "GRADPROBE=1", "GRADPROBE_SKETCH=", "GRADPROBE_LOG=off",
                               "CUDA_MPS_PIPE_DIRECTORY=/x", "CUDA_INJECTION64_PATH=/x"})
    EXPECT_EQ(look({kNeeds}, plus(with_plugin("2.28.9"), {harmless})).fixes(), 0u) << harmless;
  const Diagnosis launcher = look({"env", "ncu", kNeeds}, plus(with_plugin("2.28.9"), {"PATH=" + folder_.path()}));
  EXPECT_EQ(launcher.problem().rfind("command:", 0), 0u) << launcher.json;  // no ncu there
  script("ncu", "#!/bin/sh\ntouch " + (folder_ / "was-run") + "\n");
  script("env", "#!/bin/sh\ntouch " + (folder_ / "was-run") + "\n");
  const Diagnosis ncu = look({"env", "A=b", "ncu", "--set", "full", kNeeds},
                             plus(with_plugin("2.28.9"), {"PATH=" + folder_.path() + ":/bin:/usr/bin"}));
  EXPECT_NE(ncu.problem().find("ncu runs kernels one after the other"), std::string::npos) << ncu.json;
  EXPECT_FALSE(fs::exists(folder_ / "was-run"));
}

TEST_F(Doctor, OrdersByWhatBlocksMost) {
  const Diagnosis d =
      look({kNeeds}, {libraries("2.27.5"), "GRADPROBE=0", "GRADPROBE_SKTECH=512", "GRADPROBE_ZEROS=2",
                      "NCCL_PROFILER_PLUGIN=none", "CUDA_LAUNCH_BLOCKING=1",
                      "CUDA_VISIBLE_DEVICES=", "STANDIN_CUDA_FAIL=cuInit:1+:100", "GRADPROBE_DIR=/proc/self/exe/x"});
  std::string topics;
  for (std::size_t i = 0; i < d.fixes(); i++) topics += d.problem(i).substr(0, d.problem(i).find(':')) + " ";
  EXPECT_EQ(topics, "driver NCCL setting GRADPROBE launches folder variable variable ") << d.json;
  EXPECT_NE(d.problem(6).find("GRADPROBE_ZEROS"), std::string::npos) << d.json;
}

TEST_F(Doctor, LooksAtTheDriver) {
  const Diagnosis error = look({kNeeds}, plus(with_plugin("2.28.9"), {"STANDIN_CUDA_FAIL=cuInit:1+:803"}));
  EXPECT_NE(error.problem().find("cuInit fails with error 803"), std::string::npos) << error.json;
  EXPECT_NE(error.action().find("reboot"), std::string::npos) << error.json;
  const Diagnosis old = look({kNeeds}, plus(with_plugin("2.28.9"), {"STANDIN_CUDA_DEVICES=2", "STANDIN_CUDA_CC=90"}));
  EXPECT_EQ(old.facts("ok", "devices"), "2 x Stand-in device (compute capability 9.0)\n");
  // A driver that ends the process that calls it.
  const Diagnosis crash =
      look({kNeeds},
           plus(with_plugin(), {"LD_LIBRARY_PATH=" + kDoctorFiles + "/bad-driver:" + kDoctorFiles + "/nccl-2.28.9"}));
  EXPECT_NE(crash.problem().find("crashed (Aborted)"), std::string::npos) << crash.json;
  std::ofstream(folder_ / "libcuda.so.1") << "no driver";
  const Diagnosis text =
      look({kNeeds}, plus(with_plugin(), {"LD_LIBRARY_PATH=" + folder_.path() + ":" + kDoctorFiles + "/nccl-2.28.9"}));
  EXPECT_NE(text.problem().find("is no ELF file"), std::string::npos) << text.json;
}

TEST_F(Doctor, LooksAtTheFolder) {
  const auto with_folder = [&](const std::string& path, const Words& more = {}) {
    return look({kNeeds}, plus(plus(with_plugin("2.28.9"), {"GRADPROBE_DIR=" + path}), more));
  };
  EXPECT_NE(with_folder(folder_ / "new/deep").facts("ok", "folder").find("can be created"), std::string::npos);
  EXPECT_NE(with_folder(folder_.path()).facts("ok", "folder").find("exists, mode 0700"), std::string::npos);
  std::ofstream(folder_ / "file") << "x";
  const Diagnosis file = with_folder(folder_ / "file/x");
  EXPECT_NE(file.problem().find("is no folder"), std::string::npos) << file.json;
  std::ofstream(folder_ / "old.ring") << "x";
  EXPECT_NE(with_folder(folder_.path()).facts("note", "folder").find("1 ring file(s) of earlier runs"),
            std::string::npos);
  const Diagnosis room = with_folder(folder_.path(), {"GRADPROBE_RING_MB=65536"});
  const fs::space_info space = fs::space(folder_.path());
  if (space.available < (std::uintmax_t{65536} << 20)) {
    EXPECT_NE(room.problem().find("no room for a ring file of 65536 MiB"), std::string::npos) << room.json;
  }
  EXPECT_NE(
      look({kNeeds}, plus(with_plugin("2.28.9"), {"SLURM_JOB_ID=77"})).facts("ok", "folder").find("/77 (the default)"),
      std::string::npos);
  if (geteuid() != 0) {
    fs::create_directory(folder_ / "shut");
    fs::permissions(folder_ / "shut", fs::perms::owner_read);
    EXPECT_NE(with_folder(folder_ / "shut/x").problem().find("not writable"), std::string::npos);
  }
}

// A tree like site-packages, and an interpreter that names it.
class PythonDoctor : public Doctor {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "site/torch/lib");
    fs::create_directories(folder_ / "site/nvidia/nccl/lib");
    python_ = script("python3.11", "#!/bin/sh\necho /usr/bin/python3.11\necho\necho " + (folder_ / "none") + "\necho " +
                                       (folder_ / "site") + "\n");
  }
  void put(const std::string& file, const std::string& to) {
    fs::copy_file(kDoctorFiles + "/" + file, folder_ / ("site/" + to), fs::copy_options::overwrite_existing);
  }
  std::string python_;
};

TEST_F(PythonDoctor, FindsTheWheelBesideTorch) {
  put("torch-dynamic/libtorch_cuda.so", "torch/lib/libtorch_cuda.so");
  put("nccl-2.27.5/libnccl.so.2", "nvidia/nccl/lib/libnccl.so.2");
  const std::string torch = folder_ / "site/torch/lib/libtorch_cuda.so";
  const Diagnosis d = look({python_, "train.py"}, with_plugin());
  // LD_LIBRARY_PATH goes before RUNPATH: the stand-in's folder has a libnccl.so.2 as well.
  EXPECT_NE(d.facts("ok", "NCCL").find(kStandin), std::string::npos) << d.json;
  fs::create_directory(folder_ / "driver");
  fs::create_symlink(kStandin + "/libcuda.so.1", folder_ / "driver/libcuda.so.1");
  const Diagnosis wheel = look({python_, "train.py"}, plus(with_plugin(), {"LD_LIBRARY_PATH=" + (folder_ / "driver")}));
  EXPECT_NE(wheel.facts("ok", "NCCL").find("2.27.5+cuda12.9, linked dynamically"), std::string::npos) << wheel.json;
  EXPECT_NE(wheel.facts("ok", "NCCL").find("by RUNPATH of " + torch), std::string::npos) << wheel.json;
  EXPECT_EQ(wheel.action().rfind("export LD_PRELOAD=", 0), 0u) << wheel.json;
}

TEST_F(PythonDoctor, FindsNcclInsideTorch) {
  put("torch-static/libtorch_cuda.so", "torch/lib/libtorch_cuda.so");
  const std::string torchrun = script("torchrun", "#!" + python_ + "\nimport sys\n");
  const Diagnosis d = look({torchrun, "--nproc-per-node=8", "train.py"}, with_plugin());
  EXPECT_NE(d.facts("ok", "command").find(python_ + ", interpreter of " + torchrun), std::string::npos) << d.json;
  EXPECT_NE(d.facts("ok", "NCCL")
                .find("2.21.5+cuda12.1, linked statically, inside " + (folder_ / "site/torch/lib/libtorch_cuda.so")),
            std::string::npos)
      << d.json;
  EXPECT_EQ(d.action().rfind("update NCCL to 2.28 or newer (a build that brings it", 0), 0u) << d.json;
}

TEST_F(PythonDoctor, TellsATorchWithoutCuda) {
  std::ofstream(folder_ / "site/torch/lib/libtorch_cpu.so") << "x";
  EXPECT_NE(look({python_}, with_plugin()).problem().find("built without CUDA"), std::string::npos);
  fs::remove_all(folder_ / "site/torch");
  EXPECT_NE(look({python_}, with_plugin()).problem().find("brings or needs NCCL"), std::string::npos);
}

TEST_F(PythonDoctor, SurvivesOddInterpreters) {
  for (const char* text : {"#!/bin/sh\nexit 3\n", "#!/bin/sh\nkill -9 $$\n", "#!/bin/sh\n",
                           "#!/bin/sh\nhead -c 3000000 /dev/zero\n", "#!/nonexistent/python\n",
                           "\x7f"
                           "ELF",
                           "#!\n"}) {
    const Diagnosis d = look({script("python3", text)}, with_plugin());
    EXPECT_EQ(d.exit_code, 1) << text;
  }
}

TEST_F(PythonDoctor, AsksARealInterpreter) {
  const std::string real = GRADPROBE_PYTHON;
  if (real.empty()) GTEST_SKIP() << "no python3";
  put("torch-dynamic/libtorch_cuda.so", "torch/lib/libtorch_cuda.so");
  const Diagnosis d = look({real, "train.py"}, plus(with_plugin("2.30.7"), {"PYTHONPATH=" + (folder_ / "site")}));
  EXPECT_NE(d.facts("ok", "NCCL").find("2.30.7+cuda12.9"), std::string::npos) << d.json;
  EXPECT_NE(d.facts("ok", "NCCL").find(folder_ / "site/torch/lib/libtorch_cuda.so"), std::string::npos) << d.json;
}

TEST_F(Doctor, NeverRunsTheCommand) {
  const std::string mark = folder_ / "was-run";
  const std::string touch = "touch " + mark + "\n";
  for (const Words& command : {Words{script("train", "#!/bin/sh\n" + touch)},
                               {"sh", "-c", touch},
                               {"mpirun", "-np", "2", folder_ / "train"},
                               {"env", "A=b", folder_ / "train"},
                               {script("mpirun", "#!/bin/sh\n" + touch), folder_ / "train"},
                               {script("torchrun", "#!/bin/sh\n" + touch)}}) {
    look(command, plus(with_plugin("2.28.9"), {"PATH=" + folder_.path() + ":/usr/bin:/bin"}));
    EXPECT_FALSE(fs::exists(mark)) << command[0];
  }
}

TEST_F(Doctor, SurvivesHostileCommands) {
  fs::create_symlink("loop", folder_ / "loop");
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0700), 0);
  fs::create_directory(folder_ / "folder");
  script("no-newline", "#!" + std::string(5000, 'x'));
  script("self", "#!" + (folder_ / "self") + "\n");
  std::ofstream(folder_ / "plain") << "x";
  for (const std::string& command :
       {std::string("nosuchcommand"), folder_ / "loop", folder_ / "pipe", folder_ / "folder", folder_ / "no-newline",
        folder_ / "self", folder_ / "plain", std::string(), std::string(100000, 'x'), std::string("\x1b[31m\n"),
        std::string("/"), std::string("-x"), std::string("env")}) {
    const Diagnosis d = look({command, "x"}, with_plugin("2.28.9"));
    EXPECT_EQ(d.exit_code, 1) << command.substr(0, 80);
  }
  std::mt19937_64 random(7);
  const std::string good = contents(kNeeds);
  for (int round = 0; round < 40; round++) {
    std::string bytes = good;
    for (int i = 0; i < 12; i++) bytes[random() % (i < 8 ? 900 : bytes.size())] = static_cast<char>(random());
    bytes.replace(0, 4, good, 0, 4);
    look({script("mutant", bytes)}, with_plugin("2.28.9"));
  }
}

TEST_F(Doctor, LooksAtARunningProcess) {
  Surroundings around;
  around.program = kNeeds;
  around.environment = plus(neutral_environment(), plus(with_plugin("2.27.5"), {"GRADPROBE_DIR=" + folder_.path()}));
  const Tool running({"stay"}, "", "", around);
  ASSERT_TRUE(running.printed("ready"));
  const Diagnosis d = look({}, {}, {"--pid", std::to_string(running.pid())});
  EXPECT_NE(d.facts("ok", "command").find(kNeeds), std::string::npos) << d.json;
  EXPECT_NE(d.facts("ok", "NCCL").find("2.27.5+cuda12.9"), std::string::npos) << d.json;
  EXPECT_NE(d.facts("ok", "folder").find("GRADPROBE_DIR=" + folder_.path()), std::string::npos) << d.json;
  EXPECT_NE(d.problem().find("tells profiler plugins nothing before a launch"), std::string::npos) << d.json;
}

TEST(DoctorUsage, IsOneLine) {
  for (const Words& words : {Words{"doctor", "--"},
                             {"doctor", "train.py"},
                             {"doctor", "--pid", "0"},
                             {"doctor", "--pid", "x"},
                             {"doctor", "--pid", "2147483646"},
                             {"doctor", "--pid", "1", "--", "x"},
                             {"doctor", "--nonsense"}}) {
    const Outcome o = run_tool(words);
    EXPECT_EQ(o.exit_code, 2) << words.back();
    EXPECT_EQ(lines(o.err).size(), 1u) << o.err;
    EXPECT_EQ(o.out, "");
  }
}

}  // namespace
}  // namespace gradprobe::test
