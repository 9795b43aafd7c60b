// The profiler's calls in situations that the comparison with the real library (tests/real_nccl/order) doesn't have.
#include <algorithm>
#include <set>

#include "logged.h"

namespace {

using logged::Comm;
using logged::Json;

size_t position(const std::vector<std::string>& calls, const std::string& what, size_t from = 0) {
  auto it = std::find(calls.begin() + static_cast<long>(from), calls.end(), what);
  EXPECT_NE(it, calls.end()) << what;
  return static_cast<size_t>(it - calls.begin());
}

TEST(Groups, InnerEndsMakeSeveralGroupApiEvents) {
  auto records = logged::run(2, {}, [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < 3; i++) {
      ASSERT_NCCL(ncclGroupStart());
      c.all_reduce(c.stream);
      ASSERT_NCCL(ncclGroupEnd());
    }
    ASSERT_NCCL(ncclGroupEnd());
    c.stream.synchronize();
  });
  // The first event counts the depth at its start; inner ends count it down whether their start was counted or not.
  auto groups = logged::starts(records, "GroupApi");
  ASSERT_GE(groups.size(), 4u);
  EXPECT_EQ(groups[0]["groupDepth"], 3);
  std::set<Json> parents;
  for (const Json& r : logged::starts(records, "CollApi")) parents.insert(r["parentObj"]);
  EXPECT_GE(parents.size(), 2u);
  EXPECT_EQ(logged::starts(records, "KernelLaunch").size(), 2u) << "one launch a rank all the same";
  auto calls = logged::calls(records, 0);
  EXPECT_EQ(logged::count(calls, "start GroupApi"), logged::count(calls, "stop GroupApi"));
  EXPECT_EQ(logged::count(calls, "state GroupApi"), 2 * logged::count(calls, "start GroupApi"));
}

TEST(Groups, SeveralLaunchesOfOneGroup) {
  auto records =
      logged::run(2, {{"STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", "2"}}, [](int rank, int n, const ncclUniqueId& id) {
        Comm c(rank, n, id);
        ASSERT_NCCL(ncclGroupStart());
        for (int i = 0; i < 5; i++) c.all_reduce(c.stream);
        ASSERT_NCCL(ncclGroupEnd());
        c.stream.synchronize();
      });
  auto calls = logged::calls(records, 1);
  EXPECT_EQ(logged::count(calls, "start GroupApi"), 1u);
  EXPECT_EQ(logged::count(calls, "start KernelLaunch"), 3u);
  EXPECT_EQ(logged::count(calls, "launch"), 3u);
  EXPECT_EQ(logged::count(calls, "start Coll"), 5u);
  size_t second = position(calls, "start KernelLaunch", position(calls, "stop KernelLaunch"));
  EXPECT_EQ(std::count(calls.begin(), calls.begin() + static_cast<long>(second), "start Coll"), 2);
  std::set<Json> parents;
  for (const Json& r : logged::starts(records, "Coll")) parents.insert(Json::array({r["pid"], r["parentObj"]}));
  EXPECT_EQ(parents.size(), 10u) << "each Coll has its own CollApi";
}

TEST(Groups, LaunchUsesTheStreamJoinedLast) {
  auto records = logged::run(2, {}, [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    ranks::StreamHandle second;
    ASSERT_NCCL(ncclGroupStart());
    c.all_reduce(c.stream);
    c.all_reduce(second);
    c.all_reduce(c.stream);
    ASSERT_NCCL(ncclGroupEnd());
    c.stream.synchronize();
    second.synchronize();
  });
  auto apis = logged::starts(records, "CollApi");
  for (const Json& launch : logged::starts(records, "KernelLaunch")) {
    std::vector<Json> streams;
    for (const Json& a : apis)
      if (a["pid"] == launch["pid"]) streams.push_back(a["stream"]);
    ASSERT_EQ(streams.size(), 3u);
    EXPECT_EQ(streams[0], streams[2]);
    EXPECT_NE(streams[0], streams[1]);
    EXPECT_EQ(launch["stream"], streams[1]);
  }
}

// The caller's thread is the one that made init.
bool on_caller(const std::vector<Json>& records, const Json& r) {
  for (const Json& i : records)
    if (i.value("call", "") == "init" && i["pid"] == r["pid"]) return i["tid"] == r["tid"];
  return false;
}

TEST(HostCallbacks, ForEveryLaunch) {
  auto records = logged::run(2, {{"STANDIN_NCCL_HOST_CALLBACK", "2"}}, [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    c.all_reduce(c.stream);
    c.stream.synchronize();
  });
  auto calls = logged::calls(records, 0);
  size_t begin = position(calls, "host begin"), end = position(calls, "host end");
  EXPECT_LT(begin, position(calls, "start Group"));
  EXPECT_LT(position(calls, "stop Group"), end);
  for (const Json& r : logged::starts(records, "Coll")) EXPECT_FALSE(on_caller(records, r));
  for (const Json& r : logged::starts(records, "KernelLaunch")) EXPECT_TRUE(on_caller(records, r));
}

TEST(HostCallbacks, AsWithANetwork) {
  auto body = [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    c.all_reduce(c.stream);
    c.stream.synchronize();
  };
  auto records = logged::run(2, {{"STANDIN_NCCL_HOST_CALLBACK", "1"}}, body);
  for (const Json& r : logged::starts(records, "Coll")) EXPECT_TRUE(on_caller(records, r)) << "not when uncaptured";
  records = logged::run(2, {{"STANDIN_NCCL_HOST_CALLBACK", "1"}, {"CUDA_LAUNCH_BLOCKING", "1"}}, body);
  ASSERT_EQ(logged::starts(records, "Coll").size(), 2u);
  for (const Json& r : logged::starts(records, "Coll")) EXPECT_FALSE(on_caller(records, r));
}

TEST(Handles, StayWhenThePluginWritesNone) {
  auto records = logged::run(2, {}, [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    c.all_reduce(c.stream);
    setenv("CALL_LOG_IGNORE", "512", 1);
    c.all_reduce(c.stream);
    c.stream.synchronize();
  });
  for (int rank : {0, 1}) {
    std::vector<Json> parents;
    for (const Json& r : logged::starts(records, "Coll"))
      if (r["rank"] == rank) parents.push_back(r["parentObj"]);
    ASSERT_EQ(parents.size(), 2u);
    EXPECT_EQ(parents[0], parents[1]) << "the second Coll names the first CollApi, which has stopped";
  }
}

TEST(Mask, OnlyWhatWasAskedFor) {
  auto body = [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    c.all_reduce(c.stream);
    c.stream.synchronize();
  };
  auto calls = logged::calls(logged::run(2, {{"CALL_LOG_MASK", "0x800"}}, body), 0);
  EXPECT_EQ(calls, (std::vector<std::string>{"init", "start GroupApi", "state GroupApi", "state GroupApi",
                                             "start KernelLaunch", "launch", "stop KernelLaunch", "stop GroupApi",
                                             "finalize"}));
  calls = logged::calls(logged::run(2, {{"CALL_LOG_MASK", "0"}}, body), 0);
  EXPECT_EQ(calls, (std::vector<std::string>{"init", "launch", "finalize"}));
}

TEST(Broadcast, HasCollEventsUpTo228) {
  for (auto [version, enable, expected] : {std::tuple("2.28.9", "", true), std::tuple("2.29.7", "", false),
                                           std::tuple("2.30.7", "", false), std::tuple("2.30.7", "0", true)}) {
    auto records =
        logged::run(2, {{"STANDIN_NCCL_VERSION", version}, {"NCCL_ALLGATHERV_ENABLE", enable}},
                    [](int rank, int n, const ncclUniqueId& id) {
                      Comm c(rank, n, id);
                      ASSERT_NCCL(ncclBroadcast(c.data.data(), c.data.data(), 1000, ncclFloat, 1, c.comm, c.stream));
                      c.stream.synchronize();
                    });
    EXPECT_EQ(logged::starts(records, "CollApi").size(), 2u);
    EXPECT_EQ(logged::starts(records, "Coll").size(), expected ? 2u : 0u) << version << enable;
    EXPECT_EQ(logged::starts(records, "KernelLaunch").size(), expected ? 2u : 0u) << version << enable;
    EXPECT_EQ(logged::count(logged::calls(records, 0), "launch"), 1u);
  }
}

// Bits of Group, Coll, GroupApi, CollApi, KernelLaunch and the three of copy engines.
const std::string kAllOfCollectives = std::to_string(1 | 2 | 256 | 512 | 2048 | 4096 | 8192 | 16384);

TEST(Symmetric, SeenByNoEventButTheCallAndLaunchedFirst) {
  for (const char* version : {"2.28.9", "2.30.7"}) {
    auto records = logged::run(2, {{"STANDIN_NCCL_VERSION", version}, {"STANDIN_NCCL_SYMMETRIC", "4000"}},
                               [](int rank, int n, const ncclUniqueId& id) {
                                 Comm c(rank, n, id);
                                 ASSERT_NCCL(ncclGroupStart());
                                 c.all_reduce(c.stream, 100);
                                 c.all_reduce(c.stream, 1000);
                                 ASSERT_NCCL(ncclGroupEnd());
                                 c.all_reduce(c.stream, 1000);
                                 c.stream.synchronize();
                               });
    auto calls = logged::calls(records, 0);
    EXPECT_EQ(logged::count(calls, "start CollApi"), 3u);
    EXPECT_EQ(logged::count(calls, "launch"), 3u);
    EXPECT_EQ(logged::count(calls, "start KernelLaunch"), 1u);
    EXPECT_EQ(logged::count(calls, "start Coll"), 1u);
    EXPECT_LT(position(calls, "launch"), position(calls, "start KernelLaunch"));
  }
}

TEST(CopyEngine, EventsFrom229On) {
  for (const char* version : {"2.28.9", "2.30.7"}) {
    auto records = logged::run(
        2, {{"STANDIN_NCCL_VERSION", version}, {"STANDIN_NCCL_COPY_ENGINE", "1"}, {"CALL_LOG_MASK", kAllOfCollectives}},
        [](int rank, int n, const ncclUniqueId& id) {
          Comm c(rank, n, id);
          ranks::Buffer<float> all(200);
          EXPECT_NCCL(ncclAllGather(c.data.data(), all.data(), 100, ncclFloat, c.comm, c.stream));
          c.stream.synchronize();
        });
    auto calls = logged::calls(records, 0);
    std::erase_if(calls, [](const std::string& call) {
      return call.find("Ce") == std::string::npos && call.find("Coll") == std::string::npos &&
             call.find("Kernel") == std::string::npos && call.find(" Group") == std::string::npos;
    });
    std::vector<std::string> want = {"start GroupApi", "state GroupApi", "start CollApi", "stop CollApi",
                                     "state GroupApi"};
    if (std::string(version) == "2.30.7")
      want.insert(want.end(), {"start CeColl", "start CeSync", "stop CeSync", "start CeBatch", "stop CeBatch",
                               "start CeSync", "stop CeSync", "stop CeColl"});
    want.push_back("stop GroupApi");
    EXPECT_EQ(calls, want) << version;
    auto engines = logged::starts(records, "CeColl");
    if (engines.empty()) continue;
    EXPECT_EQ(engines[0]["func"], "AllGather");
    EXPECT_EQ(engines[0]["count"], 400);
    EXPECT_EQ(engines[0]["parentObj"].get<std::string>().substr(0, 7), "CollApi");
  }
}

TEST(Launch, FailedOneIsStoppedAndReported) {
  auto records = logged::run(1, {{"STANDIN_CUDA_FAIL", "cuLaunchKernelEx:1"}}, [](int, int, const ncclUniqueId&) {
    ncclComm_t comms[2];
    ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
    ranks::use_device(0);
    ranks::StreamHandle stream;
    ranks::Buffer<float> data(100);
    EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 100, ncclFloat, ncclSum, comms[0], stream),
              ncclUnhandledCudaError);
    for (ncclComm_t c : comms) ASSERT_NCCL(ncclCommAbort(c));
  });
  auto calls = logged::calls(records, 0);
  EXPECT_EQ(position(calls, "stop KernelLaunch") - position(calls, "start KernelLaunch"), 1u);
  EXPECT_EQ(logged::count(calls, "start Coll"), 0u);
  EXPECT_EQ(logged::count(calls, "stop GroupApi"), 1u);
  EXPECT_EQ(logged::count(calls, "finalize"), 2u);
}

TEST(OneRank, MakesOnlyInitAndFinalize) {
  auto records = logged::run(1, {}, [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    c.all_reduce(c.stream);
    c.stream.synchronize();
  });
  EXPECT_EQ(logged::calls(records, 0), (std::vector<std::string>{"init", "finalize"}));
}

TEST(PointToPoint, HasEventsOfItsOwn) {
  auto records = logged::run(2, {}, [](int rank, int n, const ncclUniqueId& id) {
    Comm c(rank, n, id);
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclSend(c.data.data(), 400, ncclFloat, 1 - rank, c.comm, c.stream));
    ASSERT_NCCL(ncclRecv(c.data.data() + 400, 400, ncclFloat, 1 - rank, c.comm, c.stream));
    ASSERT_NCCL(ncclGroupEnd());
    c.stream.synchronize();
  });
  EXPECT_EQ(logged::calls(records, 0),
            (std::vector<std::string>{"init", "start GroupApi", "state GroupApi", "start P2pApi", "stop P2pApi",
                                      "start P2pApi", "stop P2pApi", "state GroupApi", "start KernelLaunch", "launch",
                                      "stop KernelLaunch", "start Group", "start P2p", "start P2p", "stop P2p",
                                      "stop P2p", "stop Group", "stop GroupApi", "finalize"}));
  for (const Json& r : logged::starts(records, "P2p")) {
    EXPECT_EQ(r["parentObj"].get<std::string>().substr(0, 6), "P2pApi");
    EXPECT_EQ(r["peer"], 1 - r["rank"].get<int>());
    EXPECT_EQ(r["count"], 400);
  }
}

}  // namespace
