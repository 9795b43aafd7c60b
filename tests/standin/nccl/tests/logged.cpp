#include "logged.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace logged {
namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "standin-nccl-XXXXXX").string();
  EXPECT_NE(mkdtemp(pattern.data()), nullptr);
  path_ = pattern;
}
TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string plugin(const std::string& name) {
  return std::string(CALL_LOG_FOLDER) + "/lib" + name + ".so";
}

std::vector<Json> run(int ranks, const Environment& environment, const ranks::Body& body) {
  TemporaryFolder folder;
  std::string trace = folder.path() / "trace.jsonl";
  ranks::run(ranks, body, [&](int) {
    setenv("NCCL_PROFILER_PLUGIN", plugin().c_str(), 1);
    setenv("STANDIN_CUDA_TRACE", trace.c_str(), 1);
    for (const auto& [name, value] : environment)
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
  });
  std::vector<Json> records;
  std::ifstream in(trace);
  for (std::string line; std::getline(in, line);) records.push_back(Json::parse(line));
  std::sort(records.begin(), records.end(), [](const Json& a, const Json& b) { return a["seq"] < b["seq"]; });
  return records;
}

std::vector<std::string> calls(const std::vector<Json>& records, int rank) {
  Json pid = nullptr;
  for (const Json& r : records)
    if (r.value("call", "") == "init" && r["rank"] == rank) pid = r["pid"];
  std::vector<std::string> out;
  std::map<Json, std::string> types;
  for (const Json& r : records) {
    if (!pid.is_null() && r["pid"] != pid) continue;
    std::string call = r.value("call", ""), ev = r.value("ev", "");
    if (call == "startEvent") types[r["handle"]] = r["type"];
    if (call == "init" || call == "finalize") out.push_back(call);
    if (call == "startEvent") out.push_back("start " + r["type"].get<std::string>());
    if (call == "stopEvent") out.push_back("stop " + types[r["handle"]]);
    if (call == "recordEventState") out.push_back("state " + types[r["handle"]]);
    if (ev == "launch") out.push_back("launch");
    if (ev == "host_begin") out.push_back("host begin");
    if (ev == "host_end") out.push_back("host end");
  }
  return out;
}

std::vector<Json> starts(const std::vector<Json>& records, const std::string& type) {
  std::vector<Json> out;
  for (const Json& r : records)
    if (r.value("call", "") == "startEvent" && r["type"] == type) out.push_back(r);
  return out;
}

size_t count(const std::vector<std::string>& calls, const std::string& what) {
  return static_cast<size_t>(std::count(calls.begin(), calls.end(), what));
}

}  // namespace logged
