// Which file is loaded as the profiler plugin, which struct is taken, when it is unloaded.
#include <dlfcn.h>

#include <algorithm>
#include <fstream>

#include "logged.h"

namespace {

using logged::Comm;

std::vector<std::string> abis(const std::vector<logged::Json>& records) {
  std::vector<std::string> out;
  for (const auto& r : records)
    if (r.value("call", "") == "init") out.push_back(r["abi"]);
  return out;
}

// An all-reduce, and what is in the trace of it.
std::vector<logged::Json> all_reduce(const logged::Environment& environment) {
  return logged::run(2, environment, [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    c.all_reduce(c.stream);
    c.stream.synchronize();
  });
}

struct Case {
  const char* version;
  const char* plugin;
  const char* abi;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << "NCCL " << c.version << ", " << c.plugin << ": " << c.abi;
}
class Struct : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(NewestThatBothKnow, Struct,
                         testing::Values(Case{"2.28.9", "call_log", "v5"}, Case{"2.29.7", "call_log", "v6"},
                                         Case{"2.30.7", "call_log", "v6"}, Case{"2.31.2", "call_log", "v7"},
                                         Case{"2.32.3", "call_log", "v7"}, Case{"2.28.9", "call_log_v5", "v5"},
                                         Case{"2.32.3", "call_log_v5", "v5"}),
                         [](const auto& which) {
                           std::string name = std::string(which.param.version) + "_loads_" + which.param.plugin;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return "NCCL_" + name;
                         });

TEST_P(Struct, IsTaken) {
  Case c = GetParam();
  auto records = all_reduce({{"STANDIN_NCCL_VERSION", c.version}, {"NCCL_PROFILER_PLUGIN", logged::plugin(c.plugin)}});
  EXPECT_EQ(abis(records), std::vector<std::string>(2, c.abi));
  auto colls = logged::starts(records, "Coll");
  ASSERT_EQ(colls.size(), 2u);
  for (const auto& r : colls) {
    EXPECT_EQ(r["func"], "AllReduce");
    EXPECT_EQ(r["datatype"], "ncclFloat32");
    EXPECT_EQ(r["count"], 1000);
    EXPECT_EQ(r["parentObj"].get<std::string>().substr(0, 7), "CollApi");
  }
  EXPECT_EQ(logged::starts(records, "KernelLaunch").size(), 2u);
  EXPECT_EQ(logged::count(logged::calls(records, 0), "finalize"), 1u);
}

TEST(OldReleases, LoadNoPlugin) {
  EXPECT_TRUE(abis(all_reduce({{"STANDIN_NCCL_VERSION", "2.27.7"}})).empty());
}

TEST(Lookup, SuffixOnTheSearchPath) {
  EXPECT_EQ(abis(all_reduce({{"NCCL_PROFILER_PLUGIN", "call-log"}})).size(), 2u);
}
TEST(Lookup, FileNameOnTheSearchPath) {
  EXPECT_EQ(abis(all_reduce({{"NCCL_PROFILER_PLUGIN", "libnccl-profiler-call-log.so"}})).size(), 2u);
}
TEST(Lookup, DefaultName) {
  EXPECT_EQ(abis(all_reduce({{"NCCL_PROFILER_PLUGIN", ""}})).size(), 2u);
}
TEST(Lookup, None) {
  EXPECT_TRUE(abis(all_reduce({{"NCCL_PROFILER_PLUGIN", "none"}})).empty());
  EXPECT_TRUE(abis(all_reduce({{"NCCL_PROFILER_PLUGIN", "NONE"}})).empty());
}
TEST(Lookup, NamesThatAreNeverCompleted) {
  // A path, and a library's file name, are tried as they are only.
  EXPECT_TRUE(abis(all_reduce({{"NCCL_PROFILER_PLUGIN", "./call-log"}})).empty());
  EXPECT_TRUE(abis(all_reduce({{"NCCL_PROFILER_PLUGIN", "libcall-log.so"}})).empty());
}
TEST(Lookup, LibraryWithoutAStruct) {
  EXPECT_TRUE(abis(all_reduce({{"NCCL_PROFILER_PLUGIN", "libcuda.so.1"}})).empty());
}

TEST(Lifetime, FailedLoadIsRemembered) {
  auto records =
      logged::run(1, {{"NCCL_PROFILER_PLUGIN", "/nowhere/plugin.so"}}, [](int rank, int n, const ncclUniqueId& id) {
        { Comm c(rank, n, id); }
        setenv("NCCL_PROFILER_PLUGIN", logged::plugin().c_str(), 1);
        ncclUniqueId again;
        ASSERT_NCCL(ncclGetUniqueId(&again));
        Comm c(rank, n, again);
      });
  EXPECT_TRUE(abis(records).empty());
}

TEST(Lifetime, ClosedAfterTheLastCommunicatorAndLoadedAgain) {
  auto records = logged::run(1, {}, [](int rank, int n, const ncclUniqueId& id) {
    auto is_loaded = [] {
      void* library = dlopen(logged::plugin().c_str(), RTLD_NOW | RTLD_NOLOAD);
      if (library) dlclose(library);
      return library != nullptr;
    };
    EXPECT_FALSE(is_loaded());
    {
      Comm first(rank, n, id);
      EXPECT_TRUE(is_loaded());
      {
        ncclUniqueId other;
        ASSERT_NCCL(ncclGetUniqueId(&other));
        Comm second(rank, n, other);
      }
      EXPECT_TRUE(is_loaded());
    }
    EXPECT_FALSE(is_loaded());
    ncclUniqueId again;
    ASSERT_NCCL(ncclGetUniqueId(&again));
    Comm third(rank, n, again);
    EXPECT_TRUE(is_loaded());
  });
  EXPECT_EQ(abis(records).size(), 3u);
}

TEST(Init, ErrorIsNoError) {
  for (const char* version : {"2.28.9", "2.30.7"}) {
    auto records = all_reduce({{"CALL_LOG_FAIL", "3"}, {"CALL_LOG_MASK", "0"}, {"STANDIN_NCCL_VERSION", version}});
    EXPECT_EQ(abis(records).size(), 2u);
    EXPECT_TRUE(logged::starts(records, "Coll").empty());
  }
}

TEST(Init, TellsTheCommunicator) {
  auto records = logged::run(2, {{"STANDIN_NCCL_NODES", "2"}}, [](int rank, int n, const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = "gradients";
    ncclComm_t comm = nullptr, child = nullptr;
    ASSERT_NCCL(ncclCommInitRankConfig(&comm, n, id, rank, &config));
    ASSERT_NCCL(ncclCommSplit(comm, 0, -rank, &child, nullptr));
    ASSERT_NCCL(ncclCommDestroy(child));
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
  std::vector<logged::Json> inits;
  for (const auto& r : records)
    if (r.value("call", "") == "init") inits.push_back(r);
  ASSERT_EQ(inits.size(), 4u);
  for (int i : {0, 1}) {
    EXPECT_EQ(inits[static_cast<size_t>(i)]["comm_name"], "gradients");
    EXPECT_EQ(inits[static_cast<size_t>(i)]["nodes"], 2);
    EXPECT_EQ(inits[static_cast<size_t>(i)]["ranks"], 2);
    EXPECT_EQ(inits[static_cast<size_t>(i + 2)]["comm_name"], "(null)");
  }
  EXPECT_EQ(inits[0]["comm"], inits[1]["comm"]);
  EXPECT_EQ(inits[2]["comm"], inits[3]["comm"]);
  EXPECT_NE(inits[0]["comm"], inits[2]["comm"]);
  EXPECT_NE(inits[0]["rank"], inits[1]["rank"]);
}

TEST(Logger, ObeysDebugLevelAndFile) {
  for (auto [level, expected] : {std::pair("INFO", true), std::pair("WARN", false), std::pair("", false)}) {
    logged::TemporaryFolder folder;
    all_reduce({{"NCCL_DEBUG", level}, {"NCCL_DEBUG_FILE", (folder.path() / "log.%p").string()}});
    int lines = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
      std::ifstream in(file.path());
      for (std::string line; std::getline(in, line);)
        lines += line.find("NCCL INFO call log: rank") != std::string::npos && line.find(" of 2") != std::string::npos;
    }
    EXPECT_EQ(lines, expected ? 2 : 0) << level;
  }
}

}  // namespace
