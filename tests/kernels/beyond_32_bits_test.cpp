// Buckets of more than 2^32 elements. Almost all are zeros that take no memory: pages of a private mapping that nobody
// has written are all the same one.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "inputs.hpp"
#include "passes.hpp"

namespace gradprobe::test {
namespace {

// Memory of this process that the device reaches by its address.
class Zeros {
 public:
  explicit Zeros(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error("mmap of " + std::to_string(bytes) + " bytes failed");
    Device::get();
    check(cuMemHostRegister(data_, bytes, CU_MEMHOSTREGISTER_DEVICEMAP), "cuMemHostRegister");
    check(cuMemHostGetDevicePointer(&address_, data_, 0), "cuMemHostGetDevicePointer");
  }
  ~Zeros() {
    cuMemHostUnregister(data_);
    munmap(data_, bytes_);
  }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;

  unsigned char* data() { return static_cast<unsigned char*>(data_); }
  CUdeviceptr address() const { return address_; }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
  CUdeviceptr address_ = 0;
};

// One bucket and the pass over it.
class Pass {
 public:
  // `offset`: bytes from a page's beginning.
  Pass(Datatype type, std::uint64_t count, std::uint32_t offset, std::uint32_t k, std::uint32_t flags)
      : type_(type),
        count_(count),
        k_(k),
        flags_(flags),
        zeros_(offset + count * element_bytes(type) + 64),
        rig_({.k = k, .slots = 1, .ctas = kCtas, .flags = flags, .timeout_ns = 600'000'000'000}) {
    const std::uint64_t two32 = std::uint64_t{1} << 32;
    for (const auto& [index, value] : {std::pair<std::uint64_t, double>{3, 5},
                                       {16'384, -2},
                                       {two32 / 2 + 1, 7},
                                       {two32 - 1, -3},
                                       {two32, 4},
                                       {two32 + 17'000, -6},
                                       {count - 2, 8}}) {
      planted_.push_back({index, encode(type, value)});
    }
    planted_.push_back({count - 1, nan_bits(type)});
    for (const Planted& p : planted_) {
      std::memcpy(zeros_.data() + offset + p.index * element_bytes(type), &p.bits, element_bytes(type));
    }
    gate::GateEntry entry{};
    entry.input = zeros_.address() + offset;
    entry.count = count;
    entry.key = kKey;
    entry.datatype = static_cast<std::uint8_t>(type);
    rig_.add(0, entry);
    rig_.publish(0);
  }

  void launch() { rig_.launch({.ctas = kCtas, .kernel = measured_type(type_)}, stream_); }

  void expect_right() {
    SCOPED_TRACE(name(type_));
    stream_.synchronize();
    const auto results = rig_.collect();
    ASSERT_EQ(results.size(), 1u);
    Reference want = measure_sparse(type_, count_, planted_, k_, run_key_reference(kKey, 1));
    EXPECT_EQ(want.first_nonfinite, count_ - 1);
    EXPECT_GT(want.zero_count, std::uint64_t{1} << 32);
    if (!(flags_ & gate::kCountZeros)) want.zero_count = kNone;
    expect_run(results[0], gate::kInputPass, kKey, 1);
    expect_measures(results[0], want, type_, Sums::exact);
    EXPECT_TRUE(rig_.idle());
  }

 private:
  static constexpr std::uint32_t kCtas = gate::kMaxCtas;
  static constexpr std::uint64_t kKey = 21;
  Datatype type_;
  std::uint64_t count_;
  std::uint32_t k_, flags_;
  Zeros zeros_;
  std::vector<Planted> planted_;
  Rig rig_;
  Stream stream_;
};

// On two streams at once, to use the processor's cores. Zeros are counted in one of them, the other saves the time.
TEST(Beyond32Bits, OneByteAndFourBytes) {
  const std::uint64_t count = (std::uint64_t{1} << 32) + 100'003;
  Pass one_byte(Datatype::f8e4m3, count, 3, 4096, gate::kCountZeros), four_bytes(Datatype::f32, count, 0, 1024, 0);
  one_byte.launch();
  four_bytes.launch();
  one_byte.expect_right();
  four_bytes.expect_right();
}

}  // namespace
}  // namespace gradprobe::test
