// Runs ranks with the call log as their profiler plugin and gives the trace back.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ranks.h"

namespace logged {

using Json = nlohmann::json;
using Environment = std::map<std::string, std::string>;

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The call log with all structs, or call_log_v5 with that one only.
std::string plugin(const std::string& name = "call_log");

// Trace records in their order. The plugin is plugin() unless the environment names another; an empty value unsets.
std::vector<Json> run(int ranks, const Environment& environment, const ranks::Body& body);

struct Comm {
  Comm(int rank, int n, const ncclUniqueId& id) { EXPECT_NCCL(ncclCommInitRank(&comm, n, id, rank)); }
  ~Comm() { EXPECT_NCCL(ncclCommDestroy(comm)); }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  void all_reduce(CUstream s, size_t count = 1000) {
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, comm, s));
  }
  ncclComm_t comm = nullptr;
  ranks::StreamHandle stream;
  ranks::Buffer<float> data{1000};
};

// "init", "start Coll", "stop Coll", "state Coll", "finalize", "launch", "host begin", "host end" of the process in
// which rank `rank` was initialised (or of the only process), in order.
std::vector<std::string> calls(const std::vector<Json>& records, int rank);
// Start records of one type, of all processes.
std::vector<Json> starts(const std::vector<Json>& records, const std::string& type);
size_t count(const std::vector<std::string>& calls, const std::string& what);

}  // namespace logged
