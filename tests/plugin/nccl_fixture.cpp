#include "nccl_fixture.hpp"

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

namespace gradprobe::test {

CUdeviceptr Rank::buffer(std::size_t bytes) {
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc(&p, bytes), CUDA_SUCCESS);
  return p;
}

CUdeviceptr Rank::input(std::size_t count, ncclDataType_t type) {
  const std::size_t size = type == ncclFloat32 ? 4 : type == ncclInt64 ? 8 : 2;
  const CUdeviceptr p = buffer(count * size);
  std::normal_distribution<float> normal(0, 0.1f * static_cast<float>(rank + 1));
  std::vector<float> f(count);
  std::vector<std::uint16_t> h(count);
  std::vector<std::int64_t> i64(count);
  Expected e;
  e.count = count;
  for (std::size_t i = 0; i < count; i++) {
    f[i] = normal(random);
    if (type == ncclBfloat16) {
      std::uint32_t bits;
      std::memcpy(&bits, &f[i], 4);
      h[i] = static_cast<std::uint16_t>(bits >> 16);
      bits &= 0xffff0000u;
      std::memcpy(&f[i], &bits, 4);
    } else if (type == ncclFloat16) {
      // An exponent of 2^-3 and ten random bits: exact in both formats without a rounding rule of our own.
      const auto mantissa = static_cast<std::uint16_t>(random() & 0x3ffu);
      h[i] = static_cast<std::uint16_t>((12u << 10) | mantissa);
      f[i] = std::ldexp(1.0f + static_cast<float>(mantissa) / 1024.0f, -3);
    }
    e.sum_squares += static_cast<double>(f[i]) * static_cast<double>(f[i]);
  }
  const void* host = h.data();
  if (type == ncclFloat32) host = f.data();
  if (type == ncclInt64) host = i64.data();
  EXPECT_EQ(cuMemcpyHtoD(p, host, count * size), CUDA_SUCCESS);
  expected[calls++] = e;
  return p;
}

void Rank::wait() const {
  for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
    NCCL_OK(ncclCommGetAsyncError(comm, &state));
    if (state == ncclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Rank::synchronize() const {
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(other_stream), CUDA_SUCCESS);
}

std::vector<Rank> Nccl::run_ranks(const Work& work, bool blocking) {
  ncclUniqueId id;
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Rank> ranks(kRanks);
  std::vector<std::thread> threads;
  for (int i = 0; i < kRanks; i++) {
    Rank& r = ranks[static_cast<std::size_t>(i)];
    r.rank = i;
    r.ranks = kRanks;
    r.random.seed(static_cast<unsigned>(i));
    threads.emplace_back([&r, &id, &work, blocking, this] { rank_main(&r, id, work, blocking); });
  }
  for (std::thread& t : threads) t.join();
  return ranks;
}

void Nccl::run(const Work& work, bool blocking) {
  check(run_ranks(work, blocking));
}

void Nccl::rank_main(Rank* r, const ncclUniqueId& id, const Work& work, bool blocking) {
  CUdevice device = 0;
  CUDA_OK(cuDeviceGet(&device, r->rank));
  CUDA_OK(cuDevicePrimaryCtxRetain(&r->context, device));
  CUDA_OK(cuCtxSetCurrent(r->context));
  CUDA_OK(cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
  CUDA_OK(cuStreamCreate(&r->other_stream, CU_STREAM_NON_BLOCKING));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  const ncclResult_t started = ncclCommInitRankConfig(&r->comm, r->ranks, id, r->rank, &config);
  ASSERT_TRUE(started == ncclSuccess || started == ncclInProgress);
  r->wait();
  work(*r);
  if (r->comm == nullptr) return;  // the test ended it in its own way
  r->wait();
  r->synchronize();
  if (!blocking) {
    ncclCommFinalize(r->comm);
    r->wait();
  }
  NCCL_OK(ncclCommDestroy(r->comm));
}

void Nccl::expect_also(Rank rank) {
  const std::lock_guard lock(also_mutex_);
  also_.push_back(std::move(rank));
}

void Nccl::check_in(const RingFolder& folder, const std::vector<Rank>& ranks) {
  using Key = std::pair<std::string, std::uint32_t>;  // communicator's name, rank
  std::map<Key, std::map<std::uint64_t, std::vector<Record>>> rings;
  std::map<std::string, std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>>> keys;
  for (const std::string& file : folder.files()) {
    auto opened = RingReader::open(file);
    ASSERT_TRUE(opened.reader) << opened.error;
    const FileHeader& header = opened.reader->header();
    const std::string name = field_text(header.comm_name);
    RingCursor cursor(*opened.reader);
    for (Record r; cursor.next(r) == Next::record;) {
      if (!r.has_body()) continue;
      rings[{name, header.rank}][r.head.op].push_back(r);
      if (r.head.missed != 0) continue;
      // The same collective has the same sketch key on all ranks, and no two collectives share one.
      const auto seen = keys[name].try_emplace(r.head.collective.sketch_key, std::pair{r.head.op, r.head.replay});
      EXPECT_EQ(seen.first->second, (std::pair{r.head.op, r.head.replay})) << name;
    }
  }
  std::vector<Rank> all = ranks;
  all.insert(all.end(), also_.begin(), also_.end());
  for (const Rank& rank : all) {
    const auto& mine = rings[{rank.name, static_cast<std::uint32_t>(rank.rank)}];
    for (const auto& [op, records] : mine)
      EXPECT_EQ(rank.expected.count(op), 1u) << "'" << rank.name << "' rank " << rank.rank << " op " << op;
    for (const auto& [op, e] : rank.expected) {
      const std::string where = "'" + rank.name + "' rank " + std::to_string(rank.rank) + " op " + std::to_string(op);
      const auto found = mine.find(op);
      ASSERT_NE(found, mine.end()) << where;
      ASSERT_EQ(found->second.size(), static_cast<std::size_t>(e.replays)) << where;
      for (std::size_t i = 0; i < found->second.size(); i++) {
        const Record& r = found->second[i];
        EXPECT_EQ(r.head.collective.count, e.count) << where;
        EXPECT_EQ(static_cast<Missed>(r.head.missed), e.missed) << where;
        if (r.has(kFlagCaptured)) {
          EXPECT_EQ(r.head.replay, i + 1) << where;
        }
        if (r.head.missed != 0) continue;
        EXPECT_NEAR(r.head.collective.sum_squares / e.sum_squares, 1, 1e-7) << where;
      }
    }
  }
}

}  // namespace gradprobe::test
