#include "call_trace.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>

namespace call_trace {
namespace {

using Json = nlohmann::json;
using Thread = std::pair<long, long>;  // pid, tid

std::string text_of(const Json& record, const char* key) {
  auto it = record.find(key);
  if (it == record.end() || it->is_null()) return "null";
  return it->is_string() ? it->get<std::string>() : it->dump();
}

class Reader {
 public:
  explicit Reader(std::vector<Json> records) : records_(std::move(records)) {
    std::stable_sort(records_.begin(), records_.end(),
                     [](const Json& a, const Json& b) { return a.at("seq").get<long>() < b.at("seq").get<long>(); });
  }

  Sequences read() {
    find_ranks();
    find_caller_threads();
    for (const Json& r : records_) add(r);
    Sequences out;
    for (auto& [rank, lines] : by_rank_) out.by_name["rank " + rank + " profiler"] = lines;
    for (auto& [rank, lines] : callers_) out.by_name["rank " + rank + " caller"] = lines;
    for (auto& [stream, lines] : streams_) out.by_name[stream] = lines;
    number_library_threads(&out);
    return out;
  }

 private:
  static Thread thread_of(const Json& r) { return {r.at("pid").get<long>(), r.at("tid").get<long>()}; }
  static bool is_plugin(const Json& r) { return text_of(r, "src") == "plugin"; }
  std::string key(const Json& r, const char* field) const {
    return std::to_string(r.at("pid").get<long>()) + "/" + text_of(r, field);
  }

  // Contexts and handles belong to the rank that init named.
  void find_ranks() {
    std::map<std::string, int> made;
    for (const Json& r : records_) {
      if (!is_plugin(r)) continue;
      std::string call = text_of(r, "call");
      if (call == "init") {
        ranks_[key(r, "ctx")] = text_of(r, "rank");
        process_ranks_[r.at("pid").get<long>()].insert(text_of(r, "rank"));
        comms_.try_emplace(text_of(r, "comm"), comms_.size());
      } else if (call == "startEvent") {
        std::string rank = ranks_.at(key(r, "ctx")), type = text_of(r, "type");
        ranks_[key(r, "handle")] = rank;
        names_[key(r, "handle")] = type + "." + std::to_string(made[rank + type]++) + " of rank " + rank;
      }
    }
  }

  // A thread that calls the API stands for the ranks whose init it made or, in a process with one caller, for all.
  void find_caller_threads() {
    std::map<long, std::set<Thread>> callers;
    for (const Json& r : records_)
      if (api_call(r) != "") callers[r.at("pid").get<long>()].insert(thread_of(r));
    for (auto& [pid, threads] : callers) {
      if (threads.size() > 1) several_callers_.insert(pid);
      for (const Thread& t : threads) {
        std::set<std::string> mine;
        for (const Json& r : records_)
          if (is_plugin(r) && thread_of(r) == t && text_of(r, "call") == "init") mine.insert(text_of(r, "rank"));
        if (mine.empty()) mine = process_ranks_[pid];
        std::string name;
        for (const std::string& rank : mine) name += (name.empty() ? "" : "+") + rank;
        caller_name_[t] = name;
      }
    }
  }

  // The function's name of a call or return, without calls that set the stage.
  static std::string api_call(const Json& r) {
    if (text_of(r, "src") != "app" || !r.contains("text")) return "";
    std::string text = text_of(r, "text");
    text = text.substr(0, text.find('('));
    return text == "ncclGetUniqueId" ? "" : text;
  }

  std::string handle(const Json& r, const char* field) const {
    if (text_of(r, field) == "null") return "none";
    auto it = names_.find(key(r, field));
    return it == names_.end() ? "stranger " + text_of(r, field) : it->second;
  }

  std::string stream(const Json& r) {
    return std::to_string(stream_numbers_.try_emplace(key(r, "stream"), stream_numbers_.size()).first->second);
  }

  std::string plugin_line(const Json& r) {
    std::string call = text_of(r, "call");
    std::string line = call;
    auto field = [&](const char* name) {
      if (r.contains(name)) line += std::string(" ") + name + "=" + text_of(r, name);
    };
    if (call == "init") {
      line += " comm=" + std::to_string(comms_.at(text_of(r, "comm")));
      for (const char* f : {"abi", "comm_name", "nodes", "ranks", "rank", "mask"}) field(f);
    } else if (call == "startEvent") {
      line += " " + handle(r, "handle") + " parent=" + handle(r, "parentObj");
      if (r.contains("parentGroup")) line += " group=" + handle(r, "parentGroup");
      for (const char* f :
           {"rank", "func", "count", "datatype", "root", "seqNumber", "graphCaptured", "groupDepth", "channel"})
        field(f);
      if (r.contains("stream")) line += " stream=" + rank_stream(r);
      if (r.contains("sendBuff"))
        line += text_of(r, "sendBuff") == text_of(r, "recvBuff") ? " in-place" : " out-of-place";
    } else if (call == "finalize") {
      line += " rank=" + ranks_.at(key(r, "ctx"));
    } else {
      line += " " + handle(r, "handle");
      field("stateId");
    }
    return line;
  }

  // Streams are numbered within a rank, which makes their numbers independent of how ranks interleave.
  std::string rank_stream(const Json& r) {
    std::string rank = ranks_.at(key(r, "ctx"));
    auto& known = rank_streams_[rank];
    std::string name = key(r, "stream");
    size_t number = known.try_emplace(name, known.size()).first->second;
    stream_owner_.try_emplace(name, "rank " + rank + " stream " + std::to_string(number));
    return std::to_string(number);
  }
  std::string stream_name(const Json& r) {
    auto it = stream_owner_.find(key(r, "stream"));
    if (it != stream_owner_.end()) return it->second;
    // Releases without API events never name a stream; a process then has one for each rank, launched in a fixed order.
    const auto& ranks = process_ranks_[r.at("pid").get<long>()];
    std::string owner;
    for (const std::string& rank : ranks) owner += (owner.empty() ? "" : "+") + rank;
    auto& known = process_streams_[r.at("pid").get<long>()];
    size_t number = known.try_emplace(key(r, "stream"), known.size()).first->second;
    if (auto caller = caller_name_.find(thread_of(r)); caller != caller_name_.end() && ranks.size() > 1)
      owner = caller->second;
    return stream_owner_[key(r, "stream")] =
               "rank " + owner + " stream " + (owner.find('+') == std::string::npos ? "0" : std::to_string(number));
  }

  static std::string operation(const Json& r) {
    std::string kernel = text_of(r, "kernel");
    size_t at = kernel.find("DevKernel_");
    if (at == std::string::npos) return kernel;
    kernel = kernel.substr(at + 10);
    return kernel.substr(0, kernel.find('_'));
  }

  void add(const Json& r) {
    std::string src = text_of(r, "src");
    Thread t = thread_of(r);
    if (src == "app") {
      std::string call = api_call(r);
      if (call.empty()) return;
      std::string line = text_of(r, "ev") + " " + call;
      // Whether a non-blocking clean-up is done at its call's return is a matter of time.
      if (text_of(r, "ev") == "return" && call != "ncclCommFinalize") line += " " + text_of(r, "result");
      callers_[caller_name_.at(t)].push_back(line);
      if (text_of(r, "ev") == "return" && call.starts_with("ncclCommInitRankConfig") && text_of(r, "result") == "7")
        non_blocking_.insert(t.first);
      return;
    }
    if (src == "plugin") return add_plugin(r, t);
    std::string ev = text_of(r, "ev");
    if (ev == "launch") {
      caller(t).push_back("kernel launch " + operation(r) + " on " + stream_name(r) +
                          (text_of(r, "capturing") == "true" ? ", captured" : ""));
    } else if (ev == "host_func") {
      caller(t).push_back("host function given to the driver");
    } else if (ev == "graph_launch") {
      caller(t).push_back("graph launch on " + stream_name(r));
    } else if (ev == "kernel_begin" || ev == "kernel_end") {
      streams_[stream_name(r)].push_back(ev.substr(7) + " of kernel " + operation(r));
    } else if (ev == "host_begin") {
      in_host_function_[t] = stream_name(r);
      streams_[stream_name(r)].push_back("host function begins");
    } else if (ev == "host_end") {
      in_host_function_.erase(t);
      streams_[stream_name(r)].push_back("host function ends");
    }
  }

  std::vector<std::string>& caller(const Thread& t) {
    auto it = caller_name_.find(t);
    return it != caller_name_.end() ? callers_[it->second] : library_[t].lines;
  }

  void add_plugin(const Json& r, const Thread& t) {
    std::string line = plugin_line(r);
    std::string call = text_of(r, "call");
    std::string rank =
        ranks_.at(key(r, call == "init" || call == "finalize" || call == "startEvent" ? "ctx" : "handle"));
    bool kernel_channel = line.find(" KernelCh.") != std::string::npos;
    bool races_launch =
        non_blocking_.count(t.first) && call == "stopEvent" && line.find("GroupApi.") != std::string::npos;
    if (!kernel_channel && !races_launch) by_rank_[rank].push_back(line);
    auto host = in_host_function_.find(t);
    // Of several callers in a process, the one that destroys its communicator last cleans up for all.
    if (call == "finalize" && several_callers_.count(t.first) && caller_name_.count(t)) {
      callers_["last destroyer"].push_back(line);
      return;
    }
    if (host != in_host_function_.end()) {
      streams_[host->second].push_back(line);
    } else {
      if (!caller_name_.count(t)) library_[t].ranks.insert(rank);
      caller(t).push_back(line);
    }
  }

  void number_library_threads(Sequences* out) {
    std::map<std::string, std::vector<std::vector<std::string>>> groups;
    for (auto& [thread, work] : library_) {
      std::string name;
      for (const std::string& rank : work.ranks) name += (name.empty() ? "" : "+") + rank;
      groups[name].push_back(work.lines);
    }
    for (auto& [ranks, all] : groups) {
      std::sort(all.begin(), all.end());
      for (size_t i = 0; i < all.size(); i++)
        out->by_name["rank " + ranks + " library thread " + std::to_string(i)] = all[i];
    }
  }

  struct LibraryThread {
    std::set<std::string> ranks;
    std::vector<std::string> lines;
  };

  std::vector<Json> records_;
  std::map<std::string, std::string> ranks_, names_;
  std::map<std::string, size_t> comms_, stream_numbers_;
  std::map<long, std::set<std::string>> process_ranks_;
  std::map<Thread, std::string> caller_name_;
  std::map<std::string, std::map<std::string, size_t>> rank_streams_;
  std::map<long, std::map<std::string, size_t>> process_streams_;
  std::map<std::string, std::string> stream_owner_;
  std::set<long> non_blocking_, several_callers_;
  std::map<Thread, std::string> in_host_function_;
  std::map<Thread, LibraryThread> library_;
  std::map<std::string, std::vector<std::string>> by_rank_, callers_, streams_;
};

// Lines of both, common ones once: a longest common subsequence.
std::string line_difference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::vector<size_t>> longest(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = a.size(); i-- > 0;)
    for (size_t j = b.size(); j-- > 0;)
      longest[i][j] = a[i] == b[j] ? longest[i + 1][j + 1] + 1 : std::max(longest[i + 1][j], longest[i][j + 1]);
  std::string out;
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      out += "    " + a[i++] + "\n";
      j++;
    } else if (i < a.size() && (j == b.size() || longest[i + 1][j] >= longest[i][j + 1])) {
      out += "  - " + a[i++] + "\n";
    } else {
      out += "  + " + b[j++] + "\n";
    }
  }
  return out;
}

}  // namespace

Sequences read(const std::string& text) {
  std::vector<Json> records;
  std::istringstream in(text);
  std::string line;
  for (int number = 1; std::getline(in, line); number++) {
    try {
      records.push_back(Json::parse(line));
    } catch (const Json::exception& e) {
      throw std::runtime_error("line " + std::to_string(number) + ": " + e.what());
    }
  }
  return Reader(std::move(records)).read();
}

Sequences read_file(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot open " + path);
  std::stringstream text;
  text << in.rdbuf();
  try {
    return read(text.str());
  } catch (const std::exception& e) {
    throw std::runtime_error(path + ": " + e.what());
  }
}

std::string difference(const Sequences& expected, const Sequences& found) {
  static const std::vector<std::string> kNone;
  std::set<std::string> names;
  for (const auto* s : {&expected, &found})
    for (const auto& [name, lines] : s->by_name) names.insert(name);
  std::string out;
  for (const std::string& name : names) {
    auto a = expected.by_name.find(name), b = found.by_name.find(name);
    const auto& left = a == expected.by_name.end() ? kNone : a->second;
    const auto& right = b == found.by_name.end() ? kNone : b->second;
    if (left != right) out += name + ":\n" + line_difference(left, right);
  }
  return out;
}

}  // namespace call_trace
