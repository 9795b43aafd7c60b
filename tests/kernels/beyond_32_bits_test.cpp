// Buckets of more than 2^32 elements. Almost all are zeros that take no memory: pages of a private mapping that nobody
// has written are all the same one.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

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

// One bucket of `count` elements, `offset` bytes from a page's beginning.
void expect_right(Datatype type, std::uint64_t count, std::uint32_t offset, std::uint32_t k) {
  const std::uint64_t size = element_bytes(type), two32 = std::uint64_t{1} << 32;
  Zeros zeros(offset + count * size + 64);
  std::vector<Planted> planted;
  for (const auto& [index, value] : {std::pair<std::uint64_t, double>{3, 5},
                                     {16'384, -2},
                                     {two32 / 2 + 1, 7},
                                     {two32 - 1, -3},
                                     {two32, 4},
                                     {two32 + 17'000, -6},
                                     {count - 2, 8}}) {
    planted.push_back({index, encode(type, value)});
  }
  planted.push_back({count - 1, nan_bits(type)});
  for (const Planted& p : planted) std::memcpy(zeros.data() + offset + p.index * size, &p.bits, size);

  RigOptions options;
  options.k = k;
  options.slots = 1;
  options.ctas = gate::kMaxCtas;
  options.timeout_ns = 600'000'000'000;
  Rig rig(options);
  gate::GateEntry entry{};
  entry.input = zeros.address() + offset;
  entry.count = count;
  entry.key = 21;
  entry.datatype = static_cast<std::uint8_t>(type);
  rig.add(0, entry);
  rig.publish(0);
  const auto results = run_pass(rig, {.ctas = gate::kMaxCtas, .kernel = measured_type(type)});
  ASSERT_EQ(results.size(), 1u);
  const Reference want = measure_sparse(type, count, planted, k, run_key_reference(21, 1));
  EXPECT_EQ(want.first_nonfinite, count - 1);
  expect_run(results[0], gate::kInputPass, 21, 1);
  expect_measures(results[0], want, type, Sums::exact);
}

// On two streams at once, to use the processor's cores.
TEST(Beyond32Bits, OneByteAndFourBytes) {
  const std::uint64_t count = (std::uint64_t{1} << 32) + 100'003;
  std::thread four_bytes([&] {
    SCOPED_TRACE("f32");
    Device::get().make_current();
    expect_right(Datatype::f32, count, 4, 4096);
  });
  {
    SCOPED_TRACE("f8e4m3");
    expect_right(Datatype::f8e4m3, count, 3, 1024);
  }
  four_bytes.join();
}

}  // namespace
}  // namespace gradprobe::test
