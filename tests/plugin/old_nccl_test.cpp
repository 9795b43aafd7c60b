// NCCL before 2.28 (profiler structs 1 to 4), which tells nothing before the launch: every collective gets a record
// that says so, in a ring of its communicator, and one line in the log names the way out. The adapters' functions are
// called as NCCL does, with descriptors written field by field.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_nccl.hpp"
#include "profiler_abi.hpp"

namespace gradprobe::test {
namespace {

constexpr std::uint32_t kRanks = 2;
constexpr std::uint64_t kCommunicator = 0x1234;

// Where a version has the fields that gradprobe reads. Versions 1 to 3 name the communicator in each Coll.
struct Layout {
  int version;
  abi::Field type, parent, rank, func, datatype, count;
  abi::Field name, hash;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << "v" << layout.version;
}
constexpr abi::Field kNone{};
#define LAYOUT(v, name, hash)                                                                                         \
  Layout {                                                                                                            \
    v, abi::EventDescr_v##v::type, abi::EventDescr_v##v::parentObj, abi::EventDescr_v##v::rank,                       \
        abi::EventDescr_v##v::coll_func, abi::EventDescr_v##v::coll_datatype, abi::EventDescr_v##v::coll_count, name, \
        hash                                                                                                          \
  }
constexpr Layout kLayouts[] = {LAYOUT(1, abi::EventDescr_v1::coll_name, abi::EventDescr_v1::coll_commHash),
                               LAYOUT(2, abi::EventDescr_v2::coll_name, abi::EventDescr_v2::coll_commHash),
                               LAYOUT(3, abi::EventDescr_v3::coll_name, abi::EventDescr_v3::coll_commHash),
                               LAYOUT(4, kNone, kNone)};

// NCCL's functions and datatypes, by name and by version 1's number.
struct Name {
  const char* text;
  std::uint8_t number;
};
constexpr Name kAllGather{"AllGather", 2}, kReduceScatter{"ReduceScatter", 3}, kAllReduce{"AllReduce", 4};
constexpr Name kInt64{"ncclInt64", 4}, kFloat32{"ncclFloat32", 7}, kBfloat16{"ncclBfloat16", 9};

struct OldProfiler {
  const char* name;
  void (*init)();
  int (*start_event)(void*, void**, void*);
  int (*stop_event)(void*);
  int (*record_event_state)(void*, int, void*);
  int (*finalize)(void*);
};

// One rank's communicator as NCCL of the version drives it.
class Rank {
 public:
  Rank(const Layout& layout, std::uint32_t rank) : layout_(layout), rank_(rank) {
    const std::string symbol = "ncclProfiler_v" + std::to_string(layout.version);
    profiler_ = static_cast<const OldProfiler*>(dlsym(plugin_library(), symbol.c_str()));
    int result = -1;
    if (layout.version == 4) {
      using Init = int (*)(void**, int*, const char*, std::uint64_t, int, int, int, Logger);
      result = reinterpret_cast<Init>(profiler_->init)(&context_, &mask_, "dp", kCommunicator, 1, kRanks,
                                                       static_cast<int>(rank), nullptr);
    } else {
      using Init = int (*)(void**, int*);
      result = reinterpret_cast<Init>(profiler_->init)(&context_, &mask_);
    }
    EXPECT_EQ(result, 0);
  }
  ~Rank() { EXPECT_EQ(profiler_->finalize(context_), 0); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // A launch's collectives, after it.
  struct Told {
    Name func;
    std::uint64_t count;
    Name datatype = kFloat32;
  };
  void tell(const std::vector<Told>& collectives) const {
    if ((mask_ & 3) == 0) return;
    void* const group = start(1, nullptr, {});
    std::vector<void*> handles;
    for (const Told& c : collectives) handles.push_back(group != nullptr ? start(2, group, c) : nullptr);
    for (void* handle : handles)
      if (handle != nullptr) profiler_->stop_event(handle);
    if (group != nullptr) profiler_->stop_event(group);
  }

 private:
  using Bytes = std::array<unsigned char, 120>;
  template <typename T>
  static void put(Bytes* bytes, abi::Field field, T value) {
    ASSERT_EQ(field.size, sizeof value);
    std::memcpy(bytes->data() + field.offset, &value, sizeof value);
  }

  void* start(std::uint8_t type, void* parent, const Told& told) const {
    alignas(8) Bytes descriptor = {};
    put(&descriptor, layout_.type, type);
    put(&descriptor, layout_.parent, parent);
    put(&descriptor, layout_.rank, static_cast<int>(rank_));
    if (type == 2) {
      put(&descriptor, layout_.count, told.count);
      for (const auto& [field, name] : {std::pair(layout_.func, told.func), std::pair(layout_.datatype, told.datatype)})
        layout_.version == 1 ? put(&descriptor, field, name.number) : put(&descriptor, field, name.text);
      if (layout_.version < 4) {
        put(&descriptor, layout_.name, "dp");
        put(&descriptor, layout_.hash, kCommunicator);
      }
    }
    void* handle = nullptr;
    EXPECT_EQ(profiler_->start_event(context_, &handle, descriptor.data()), 0);
    return handle;
  }

  const Layout& layout_;
  const std::uint32_t rank_;
  const OldProfiler* profiler_ = nullptr;
  void* context_ = nullptr;
  int mask_ = 0;
};

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) n++;
  return n;
}

class OldNccl : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override { setenv("GRADPROBE_LOG", "stderr", 1); }

  // `work` for each rank of one communicator; returns what the plugin said.
  template <typename Work>
  std::string run(const Work& work) {
    ::testing::internal::CaptureStderr();
    {
      Rank first(GetParam(), 0), second(GetParam(), 1);
      work(first);
      work(second);
    }
    std::string said, all = ::testing::internal::GetCapturedStderr();
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = std::min(all.find('\n', at), all.size() - 1) + 1;
      if (all.compare(at, 11, "gradprobe: ") == 0) said += all.substr(at, end - at);
      at = end;
    }
    return said;
  }

  // Each rank's records of one communicator, by the rank in the ring's header.
  std::map<std::uint32_t, std::vector<Record>> rings() const {
    std::map<std::uint32_t, std::vector<Record>> all;
    for (const std::string& file : folder_.files()) {
      auto opened = RingReader::open(file);
      EXPECT_TRUE(opened.reader) << opened.error;
      if (!opened.reader) continue;
      const FileHeader& h = opened.reader->header();
      EXPECT_EQ(h.profiler_abi, static_cast<std::uint32_t>(GetParam().version));
      EXPECT_EQ(h.nranks, GetParam().version == 4 ? kRanks : 0);
      EXPECT_EQ(h.comm_id, kCommunicator);
      auto& records = all[h.rank];
      RingCursor cursor(*opened.reader);
      for (Record r; cursor.next(r) == Next::record;)
        if (r.has_body()) records.push_back(r);
    }
    return all;
  }

  RingFolder folder_;
};

struct Call {
  Function function;
  Datatype datatype;
  std::uint64_t count;
  Missed missed;
  bool operator==(const Call&) const = default;
};

Call call_of(const Record& r) {
  const CollectiveBody& body = r.head.collective;
  return {static_cast<Function>(body.function), static_cast<Datatype>(body.datatype), body.count,
          static_cast<Missed>(r.head.missed)};
}

TEST_P(OldNccl, EveryCollectiveHasARecordThatSaysWhy) {
  const std::string said = run([](Rank& r) {
    r.tell({{kAllReduce, 10000}});
    r.tell({{kAllReduce, 777, kBfloat16}});
    r.tell({{kReduceScatter, 3000}});
    // With proxy work a graph's replays tell from a CUDA host function.
    std::thread([&] { r.tell({{kAllReduce, 1}}); }).join();
    r.tell({{kAllReduce, 500, kInt64}});
    r.tell({{kAllGather, 20000}});  // not measured by any release: no record
    r.tell({{kAllReduce, 4096}, {kAllReduce, 16384}, {kAllReduce, 65536}});
  });
  EXPECT_EQ(occurrences(said, "not measured: NCCL < 2.28, use the preload library (libgradprobe-preload.so)"), 1u)
      << said;

  const auto all = rings();
  ASSERT_EQ(all.size(), kRanks);
  constexpr Missed kWhy = Missed::unsupported_nccl;
  // Where NCCL doesn't tell the number of ranks, only one rank's part of a reduce-scatter is known.
  const std::uint64_t scattered = GetParam().version == 4 ? 3000 * kRanks : 3000;
  const std::vector<Call> expected = {{Function::all_reduce, Datatype::f32, 10000, kWhy},
                                      {Function::all_reduce, Datatype::bf16, 777, kWhy},
                                      {Function::reduce_scatter, Datatype::f32, scattered, kWhy},
                                      {Function::all_reduce, Datatype::f32, 1, kWhy},
                                      {Function::all_reduce, Datatype::i64, 500, Missed::unsupported_datatype},
                                      {Function::all_reduce, Datatype::f32, 4096, kWhy},
                                      {Function::all_reduce, Datatype::f32, 16384, kWhy},
                                      {Function::all_reduce, Datatype::f32, 65536, kWhy}};
  for (const auto& [rank, records] : all) {
    ASSERT_EQ(records.size(), expected.size()) << rank;
    for (std::size_t i = 0; i < expected.size(); i++) {
      EXPECT_EQ(records[i].head.op, i < 5 ? i : i + 1);  // the all-gather has a number, too
      EXPECT_EQ(call_of(records[i]), expected[i]) << "rank " << rank << " op " << i;
    }
  }
}

TEST_P(OldNccl, WithoutCollectivesNothingIsClaimed) {
  run([](Rank&) {});
  const auto all = rings();
  EXPECT_EQ(all.size(), GetParam().version == 4 ? kRanks : 0u);  // 1 to 3: whose ring it would be is never told
  for (const auto& [rank, records] : all) EXPECT_TRUE(records.empty()) << rank;
}

TEST_P(OldNccl, ARingThatCannotBeMadeIsNamed) {
  const std::string file = folder_.path() + "/file";
  std::ofstream(file) << "x";
  setenv("GRADPROBE_DIR", (file + "/below").c_str(), 1);
  const std::string said = run([](Rank& r) { r.tell({{kAllReduce, 1000}}); });
  EXPECT_GE(occurrences(said, file), 1u) << said;
  std::filesystem::remove(file);
  EXPECT_TRUE(folder_.files().empty());
}

TEST_P(OldNccl, SwitchedOffNothingIsAskedFor) {
  setenv("GRADPROBE", "0", 1);
  const std::string said = run([](Rank& r) { r.tell({{kAllReduce, 1000}}); });
  EXPECT_EQ(said, "");
  EXPECT_TRUE(folder_.files().empty());
}

INSTANTIATE_TEST_SUITE_P(, OldNccl, ::testing::ValuesIn(kLayouts),
                         [](const auto& layout) { return "v" + std::to_string(layout.param.version); });

}  // namespace
}  // namespace gradprobe::test
