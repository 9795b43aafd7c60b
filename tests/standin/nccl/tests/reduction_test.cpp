// Every operator on every data type against a reference in double, in place and out of place, over several chunks.
#include <cstring>
#include <random>

#include "float_reference.h"
#include "ranks.h"

namespace {

namespace ref = float_reference;

struct Type {
  ncclDataType_t id;
  size_t size;
  const ref::Format* format;  // small floats only
  bool integer, is_signed;
};
void PrintTo(const Type& t, std::ostream* out) {
  *out << "ncclDataType_t " << static_cast<int>(t.id);
}
const Type kTypes[] = {
    {ncclInt8, 1, nullptr, true, true},
    {ncclUint8, 1, nullptr, true, false},
    {ncclInt32, 4, nullptr, true, true},
    {ncclUint32, 4, nullptr, true, false},
    {ncclInt64, 8, nullptr, true, true},
    {ncclUint64, 8, nullptr, true, false},
    {ncclFloat16, 2, &ref::kHalf, false, true},
    {ncclFloat32, 4, nullptr, false, true},
    {ncclFloat64, 8, nullptr, false, true},
    {ncclBfloat16, 2, &ref::kBfloat16, false, true},
    {ncclFloat8e4m3, 1, &ref::kE4m3, false, true},
    {ncclFloat8e5m2, 1, &ref::kE5m2, false, true},
};

double load(const Type& t, const unsigned char* at) {
  auto as = [&](auto sample) {
    memcpy(&sample, at, sizeof sample);
    return static_cast<double>(sample);
  };
  switch (t.id) {
    case ncclInt8:
      return as(int8_t{});
    case ncclUint8:
      return as(uint8_t{});
    case ncclInt32:
      return as(int32_t{});
    case ncclUint32:
      return as(uint32_t{});
    case ncclInt64:
      return as(int64_t{});
    case ncclUint64:
      return as(uint64_t{});
    case ncclFloat32:
      return as(float{});
    case ncclFloat64:
      return as(double{});
    default:
      return ref::decode(*t.format, static_cast<uint32_t>(t.size == 2 ? as(uint16_t{}) : as(uint8_t{})));
  }
}

// Inputs are small enough that no integer sum or product overflows and no 8-bit float saturates.
void random_value(const Type& t, std::mt19937* random, unsigned char* at) {
  auto put = [&](auto v) { memcpy(at, &v, sizeof v); };
  int whole = static_cast<int>((*random)() % 9) - (t.is_signed ? 4 : 0);
  double real = static_cast<double>((*random)() % 4001) / 1000 - 2;
  if (t.integer) {
    if (t.size == 1) put(static_cast<int8_t>(t.is_signed ? whole : whole / 2));
    if (t.size == 4) put(static_cast<int32_t>(whole));
    if (t.size == 8) put(static_cast<int64_t>(whole));
  } else if (t.id == ncclFloat32) {
    put(static_cast<float>(real));
  } else if (t.id == ncclFloat64) {
    put(real);
  } else {
    // Any pattern whose value is in range.
    for (;;) {
      uint32_t bits = static_cast<uint32_t>((*random)()) & ((1u << (8 * t.size)) - 1);
      double v = ref::decode(*t.format, bits);
      if (!(std::fabs(v) <= 4)) continue;
      if (t.size == 2) put(static_cast<uint16_t>(bits));
      if (t.size == 1) put(static_cast<uint8_t>(bits));
      return;
    }
  }
}

std::vector<unsigned char> input(const Type& t, size_t n, int rank, unsigned seed) {
  std::mt19937 random(seed * 31 + static_cast<unsigned>(rank));
  std::vector<unsigned char> bytes(n * t.size);
  for (size_t i = 0; i < n; i++) random_value(t, &random, &bytes[i * t.size]);
  return bytes;
}

double fold(ncclRedOp_t op, const std::vector<double>& x) {
  double v = x[0];
  for (size_t r = 1; r < x.size(); r++) {
    double y = x[r];
    v = op == ncclProd ? v * y : op == ncclMax ? std::max(v, y) : op == ncclMin ? std::min(v, y) : v + y;
  }
  return op == ncclAvg ? v / static_cast<double>(x.size()) : v;
}

// The result of an exact computation as the type can hold it, and how far a correct implementation may be from it: one
// rounding for small types, which are accumulated as float.
double rounded(const Type& t, double exact) {
  static const ref::Rounder half(ref::kHalf), bfloat(ref::kBfloat16), e4m3(ref::kE4m3), e5m2(ref::kE5m2);
  switch (t.id) {
    case ncclFloat16:
      return half(exact);
    case ncclBfloat16:
      return bfloat(exact);
    case ncclFloat8e4m3:
      return e4m3(exact);
    case ncclFloat8e5m2:
      return e5m2(exact);
    default:
      return t.integer ? std::trunc(exact) : exact;
  }
}
bool agrees(const Type& t, double exact, double found, double magnitude) {
  if (t.integer) return rounded(t, exact) == found;
  double eps = t.id == ncclFloat64 ? 1e-15 : 2e-7;
  // A float's rounding error may move a value across the middle between two of a small type's values.
  return std::min(rounded(t, exact - eps * magnitude), rounded(t, exact + eps * magnitude)) - eps * magnitude <=
             found &&
         found <= std::max(rounded(t, exact - eps * magnitude), rounded(t, exact + eps * magnitude)) + eps * magnitude;
}

void check_type(const Type& t, int rank, int ranks, ncclComm_t comm, CUstream stream) {
  const size_t n = 5003;  // several chunks of 16 KiB, and no multiple of anything
  for (ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
    std::vector<std::vector<unsigned char>> inputs;
    for (int r = 0; r < ranks; r++) inputs.push_back(input(t, n, r, static_cast<unsigned>(t.id * 100 + op)));
    const auto& mine = inputs[static_cast<size_t>(rank)];
    for (bool in_place : {false, true}) {
      ranks::Buffer<unsigned char> from(mine), to(std::vector<unsigned char>(n * t.size, 0xee));
      unsigned char* out = in_place ? from.data() : to.data();
      ASSERT_NCCL(ncclAllReduce(from.data(), out, n, t.id, op, comm, stream));
      ASSERT_CU(cuStreamSynchronize(stream));
      if (!in_place) {
        ASSERT_EQ(from.get(), mine) << "the input changed";
      }
      auto result = in_place ? from.get() : to.get();
      for (size_t i = 0; i < n; i++) {
        std::vector<double> x;
        double magnitude = 0;
        for (auto& bytes : inputs) {
          x.push_back(load(t, &bytes[i * t.size]));
          magnitude = std::max(magnitude, std::fabs(x.back()) * ranks);
        }
        if (op == ncclProd) magnitude = std::pow(4, ranks);
        double exact = fold(op, x), found = load(t, &result[i * t.size]);
        ASSERT_TRUE(agrees(t, exact, found, magnitude))
            << "type " << t.id << " op " << op << " element " << i << ": " << found << " instead of " << exact;
      }
    }
  }
}

class EveryOperator : public testing::TestWithParam<Type> {};

TEST_P(EveryOperator, AgreesWithDouble) {
  ranks::run(
      3,
      [](int rank, int n, const ncclUniqueId& id) {
        ncclComm_t comm = nullptr;
        ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
        {
          ranks::StreamHandle stream;
          check_type(GetParam(), rank, n, comm, stream);
        }
        ASSERT_NCCL(ncclCommDestroy(comm));
      },
      [](int) {
        setenv("STANDIN_CUDA_CC", "90", 1);
        setenv("STANDIN_NCCL_CHUNK_KIB", "16", 1);
      });
}
std::string name_of(const testing::TestParamInfo<Type>& info) {
  const Type& t = info.param;
  const char* const kinds[] = {"uint", "int", "float"};
  const std::string bits = std::to_string(8 * t.size);
  if (t.id == ncclBfloat16) return "bfloat16";
  if (t.id == ncclFloat8e4m3) return "float8e4m3";
  if (t.id == ncclFloat8e5m2) return "float8e5m2";
  return kinds[t.integer ? t.is_signed : 2] + bits;
}
INSTANTIATE_TEST_SUITE_P(Types, EveryOperator, testing::ValuesIn(kTypes), name_of);

// Sums are made in rank order, so they are the same on all ranks and in every run.
TEST(Reduction, IsTheSequentialSum) {
  ranks::run(4, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    const size_t count = 400'000;
    auto values = [](int r, size_t i) {
      return static_cast<float>(std::sin(static_cast<double>(i) * (r + 1)) * std::pow(10, r));
    };
    std::vector<float> mine(count);
    for (size_t i = 0; i < count; i++) mine[i] = values(rank, i);
    ranks::Buffer<float> data(mine);
    ranks::StreamHandle stream;
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclFloat, ncclSum, comm, stream));
    stream.synchronize();
    auto found = data.get();
    for (size_t i = 0; i < count; i++) {
      float sum = values(0, i);
      for (int r = 1; r < n; r++) sum += values(r, i);
      ASSERT_EQ(sum, found[i]) << i;
    }
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(Reduction, IntegersWrapAround) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    ranks::Buffer<int32_t> data(std::vector<int32_t>{INT32_MAX, INT32_MIN, 65536});
    ranks::StreamHandle stream;
    ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 2, ncclInt32, ncclSum, comm, stream));
    ASSERT_NCCL(ncclAllReduce(data.data() + 2, data.data() + 2, 1, ncclInt32, ncclProd, comm, stream));
    stream.synchronize();
    EXPECT_EQ(data.get(), (std::vector<int32_t>{-2, 0, 0}));
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(Reduction, Float8NeedsComputeCapability90) {
  ranks::run(2, [](int rank, int n, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
    ranks::Buffer<uint8_t> data(std::vector<uint8_t>(16, static_cast<uint8_t>(rank)));
    ranks::StreamHandle stream;
    EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 16, ncclFloat8e4m3, ncclSum, comm, stream), ncclInvalidArgument);
    ASSERT_NCCL(ncclBroadcast(data.data(), data.data(), 16, ncclFloat8e4m3, 1, comm, stream));
    stream.synchronize();
    EXPECT_EQ(data.get(), std::vector<uint8_t>(16, 1));
    ASSERT_NCCL(ncclCommDestroy(comm));
  });
}

}  // namespace
