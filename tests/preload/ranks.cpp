#include "ranks.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

namespace gradprobe::test {

bool nccl_has(const char* function) {
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  EXPECT_NE(library, nullptr) << dlerror();
  return library != nullptr && dlsym(library, function) != nullptr;
}

Expected& Comm::expect(const Input& input) {
  expected.push_back({calls++, input.count, input.sum_squares, 1, Missed::none});
  return expected.back();
}

CUdeviceptr Rank::buffer(std::size_t bytes) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS);
  return p;
}

Input Rank::input(std::size_t count, ncclDataType_t type) {
  Input in;
  in.count = count;
  in.type = type;
  const std::size_t size = type == ncclFloat32 ? 4 : 2;
  in.address = buffer(count * size);
  std::normal_distribution<float> normal(0, 0.1f * static_cast<float>(rank + 1));
  in.host.resize(count);
  std::vector<std::uint16_t> bf16(count);
  for (std::size_t i = 0; i < count; i++) {
    in.host[i] = normal(random);
    if (type == ncclBfloat16) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &in.host[i], 4);
      bits &= 0xffff0000u;
      bf16[i] = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(&in.host[i], &bits, 4);
    }
    in.sum_squares += static_cast<double>(in.host[i]) * static_cast<double>(in.host[i]);
  }
  const void* host = type == ncclFloat32 ? static_cast<const void*>(in.host.data()) : bf16.data();
  EXPECT_EQ(cuMemcpyHtoD(in.address, host, count * size), CUDA_SUCCESS);
  return in;
}

void Rank::init(const std::string& name, int id, bool blocking) {
  Comm& c = comms[name];
  c.rank = rank;
  if (!nccl_has("ncclCommInitRankConfig")) {
    c.named = false;
    NCCL_OK(ncclCommInitRank(&c.comm, kRanks, ids[id], rank));
    return;
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  config.commName = name.c_str();
  const ncclResult_t started = ncclCommInitRankConfig(&c.comm, kRanks, ids[id], rank, &config);
  ASSERT_TRUE(started == ncclSuccess || (!blocking && started == ncclInProgress)) << started;
  wait(name);
}

void Rank::wait(const std::string& name) {
  for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
    NCCL_OK(ncclCommGetAsyncError(comms[name].comm, &state));
    if (state == ncclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Rank::destroy(const std::string& name) {
  synchronize();
  NCCL_OK(ncclCommDestroy(comms[name].comm));
}

ncclResult_t Rank::all_reduce(const std::string& name, const Input& in, CUstream on) {
  Comm& c = comms[name];
  c.expect(in);
  return ncclAllReduce(in.pointer(), in.pointer(), in.count, in.type, ncclSum, c.comm, on != nullptr ? on : stream);
}

void Rank::synchronize() {
  CUDA_OK(cuStreamSynchronize(stream));
  CUDA_OK(cuStreamSynchronize(other_stream));
}

std::vector<Rank> run(const std::function<void(Rank&)>& work) {
  std::vector<Rank> ranks(kRanks);
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int i = 0; i < kRanks; i++) {
    threads.emplace_back([&, i] {
      Rank& r = ranks[static_cast<std::size_t>(i)];
      r.rank = i;
      r.random.seed(static_cast<unsigned>(i) + 1);
      std::memcpy(r.ids, ids, sizeof ids);
      CUdevice device = 0;
      CUDA_OK(cuDeviceGet(&device, i));
      CUDA_OK(cuDevicePrimaryCtxRetain(&r.context, device));
      CUDA_OK(cuCtxSetCurrent(r.context));
      CUDA_OK(cuStreamCreate(&r.stream, CU_STREAM_NON_BLOCKING));
      CUDA_OK(cuStreamCreate(&r.other_stream, CU_STREAM_NON_BLOCKING));
      work(r);
    });
  }
  for (std::thread& t : threads) t.join();
  return ranks;
}

Rings read(const RingFolder& folder) {
  Rings all;
  for (const std::string& file : folder.files()) {
    auto opened = RingReader::open(file);
    EXPECT_TRUE(opened.reader) << opened.error;
    if (!opened.reader) continue;
    Rings::Ring ring;
    ring.header = opened.reader->header();
    ring.counters = opened.reader->counters();
    RingCursor cursor(*opened.reader);
    for (Record r; cursor.next(r) == Next::record;) {
      if (r.has_body())
        ring.inputs.push_back(r);
      else if (r.head.kind == static_cast<std::uint16_t>(RecordKind::result))
        ring.results.push_back(r);
    }
    all.rings[{ring.header.comm_name, static_cast<int>(ring.header.rank)}].push_back(std::move(ring));
  }
  return all;
}

const Rings::Ring& Rings::only(const std::string& name, int rank) const {
  static const Ring none;
  const auto found = rings.find({name, rank});
  EXPECT_NE(found, rings.end()) << "no ring of " << name << " rank " << rank;
  if (found == rings.end()) return none;
  EXPECT_EQ(found->second.size(), 1u) << name << " rank " << rank;
  return found->second.front();
}

const Rings::Ring& Rings::only(const std::string& name, int rank, std::size_t inputs) const {
  const auto found = rings.find({name, rank});
  if (found == rings.end() || found->second.size() == 1) return only(name, rank);
  const auto fits = [&](const Ring& ring) { return ring.inputs.size() == inputs; };
  EXPECT_EQ(std::count_if(found->second.begin(), found->second.end(), fits), 1) << name << " rank " << rank;
  const auto ring = std::find_if(found->second.begin(), found->second.end(), fits);
  return ring != found->second.end() ? *ring : found->second.front();
}

void check(const std::vector<Rank>& ranks, const RingFolder& folder) {
  const Rings rings = read(folder);
  using Key = std::pair<std::uint64_t, std::uint32_t>;
  std::map<std::string, std::map<Key, std::set<std::uint64_t>>> keys;  // by communicator and (op, replay)
  std::map<std::string, std::set<std::uint64_t>> ids;
  std::size_t wanted_rings = 0;
  for (const Rank& rank : ranks) {
    for (const auto& [name, comm] : rank.comms) {
      wanted_rings++;
      std::size_t wanted = 0;
      for (const Expected& e : comm.expected) wanted += static_cast<std::size_t>(e.replays);
      const Rings::Ring& ring = rings.only(comm.named ? name : "", comm.rank, wanted);
      ids[name].insert(ring.header.comm_id);
      EXPECT_EQ(ring.header.profiler_abi, 0u);
      std::map<std::uint64_t, std::vector<Record>> by_op;
      for (const Record& r : ring.inputs) by_op[r.head.op].push_back(r);
      EXPECT_EQ(by_op.size(), comm.expected.size()) << name << " rank " << comm.rank;
      for (const Expected& e : comm.expected) {
        const std::string what = name + " rank " + std::to_string(comm.rank) + " op " + std::to_string(e.op);
        const std::vector<Record>& records = by_op[e.op];
        EXPECT_EQ(records.size(), static_cast<std::size_t>(e.replays)) << what;
        for (const Record& r : records) {
          EXPECT_EQ(r.head.collective.count, e.count) << what;
          EXPECT_EQ(static_cast<Missed>(r.head.missed), e.missed) << what;
          if (r.head.missed != 0) continue;
          EXPECT_NEAR(r.head.collective.sum_squares / e.sum_squares, 1, 1e-7) << what;
          keys[name][{r.head.op, r.head.replay}].insert(r.head.collective.sketch_key);
        }
      }
    }
  }
  std::size_t found_rings = 0;
  for (const auto& [key, list] : rings.rings) found_rings += list.size();
  EXPECT_EQ(found_rings, wanted_rings);
  std::set<std::uint64_t> all_ids;
  for (const auto& [name, values] : ids) {
    EXPECT_EQ(values.size(), 1u) << name << ": ranks disagree on the communicator's id";
    all_ids.insert(values.begin(), values.end());
  }
  EXPECT_EQ(all_ids.size(), ids.size()) << "communicators share an id";
  for (const auto& [name, by_key] : keys)
    for (const auto& [key, values] : by_key) EXPECT_EQ(values.size(), 1u) << name << " op " << key.first;
}

}  // namespace gradprobe::test
