// Plays NCCL against the real plugin library: its exported struct, event by event, in any order a test wants, on the
// stand-in CUDA driver. "NCCL's kernel" clears the buffer, so only a measurement that ran before it sees the input.
#pragma once

#include <cuda.h>

#include <gradprobe/ring_reader.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace gradprobe::test {

// The event descriptor of v7 as far as gradprobe reads it; those of v5 and v6 are the same without v7's fields.
struct Descriptor {
  std::uint64_t type = 0;
  void* parent = nullptr;
  int rank = 0;
  union {
    struct {
      bool graph_captured;
      int group_depth;
    } group_api;
    struct {
      const char* func;
      std::size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool graph_captured;
      std::uint64_t user_tag;  // v7
    } coll_api;
    struct {
      void* stream;
    } kernel_launch;
    struct {
      std::uint64_t seq_number;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      const char* sync_strategy;
      bool intra_batch_sync;
      std::uint32_t batch_size, batches, ce_seq_number;
      void* stream;
    } ce_coll;  // v6
    struct {
      std::uint64_t seq_number;
      const char* func;
      const void* send;
      void* recv;
      std::size_t count;
      int root;
      const char* datatype;
      std::uint8_t channels;
      std::uint8_t warps;
      const char* algo;
      const char* proto;
      void* parent_group;
      const char* kernel_variant;  // v7, and what follows
      bool symmetric;
      std::uint64_t user_tag;
    } coll;
    struct {
      std::uint8_t channel, phase;
      const char* name;
      std::uint64_t timer;
    } kernel_phase;  // v7
    unsigned char room[112] = {};
  };
};
static_assert(sizeof(Descriptor) == 136);

using Logger = void (*)(int, unsigned long, const char*, int, const char*, ...);

struct ProfilerV5 {
  const char* name;
  int (*init)(void**, std::uint64_t, int*, const char*, int, int, int, Logger);
  int (*start_event)(void*, void**, Descriptor*);
  int (*stop_event)(void*);
  int (*record_event_state)(void*, int, void*);
  int (*finalize)(void*);
};

// Lines that the plugin gave to NCCL's logger, as "LEVEL text".
std::vector<std::string> take_log();

// The library under test.
void* plugin_library();
const ProfilerV5& profiler(int version = 5);

// A fresh folder, removed with the object; GRADPROBE_DIR points to it.
class RingFolder {
 public:
  RingFolder();
  ~RingFolder();
  RingFolder(const RingFolder&) = delete;
  RingFolder& operator=(const RingFolder&) = delete;
  const std::string& path() const { return path_; }
  std::vector<std::string> files() const;
  // All readable records of all rings, collective and scalar records only, in ring order.
  std::vector<Record> collectives() const;
  std::vector<Record> records() const;
  std::vector<Record> records(RecordKind kind) const;
  LiveCounters counters() const;  // of the only ring

 private:
  std::string path_;
};

// A base before a fixture: kernel launches return when the kernel has ended. The driver looks once, at the first call.
struct LaunchesBlock {
  LaunchesBlock() { setenv("CUDA_LAUNCH_BLOCKING", "1", 1); }
};

// A CUDA context of the stand-in's device 0, current on the constructing thread.
class Device {
 public:
  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  CUcontext context() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

// A device buffer of float32 with known random content.
class Bucket {
 public:
  explicit Bucket(std::size_t count, unsigned seed = 1);
  ~Bucket();
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;
  void refill() const;
  CUdeviceptr address() const { return address_; }
  void* pointer() const { return reinterpret_cast<void*>(address_); }
  std::size_t count() const { return host_.size(); }
  double sum_squares() const;
  const std::vector<float>& host() const { return host_; }

 private:
  std::vector<float> host_;
  CUdeviceptr address_ = 0;
};

// One collective of a launch: the call that NCCL announced, its buffers, and what "NCCL's kernel" leaves in the output.
struct Part {
  void* call = nullptr;  // CollApi handle
  const Bucket* input = nullptr;
  const Bucket* output = nullptr;   // the input itself when null
  const Bucket* reduced = nullptr;  // whose content becomes the output's; zeros when null
  std::size_t count = 0;            // elements that NCCL tells and writes; the input's when 0

  std::size_t told() const { return count != 0 ? count : input->count(); }
  const Bucket& result() const { return output != nullptr ? *output : *input; }
};
using Parts = std::vector<Part>;

// One communicator as NCCL drives it.
class FakeComm {
 public:
  explicit FakeComm(std::uint64_t id = 0x1234, int nranks = 2, int rank = 0, int version = 5,
                    const char* name = "test");
  ~FakeComm();
  FakeComm(const FakeComm&) = delete;
  FakeComm& operator=(const FakeComm&) = delete;

  // What version 7 tells with the calls and collectives from here on.
  std::uint64_t user_tag = 0;
  bool symmetric = false;

  void* context() const { return context_; }
  int mask() const { return mask_; }
  void finalize();

  void* group_api_start(bool captured = false);
  void* coll_api(void* group_api, std::size_t count, CUstream stream, const char* func = "AllReduce",
                 const char* datatype = "ncclFloat32", bool captured = false);
  void* launch_start(void* group_api, CUstream stream);
  void* group_start();
  void coll(void* coll_api, void* group, const void* send, void* recv, std::size_t count);
  // CeColl with the call as parent.
  void* copy_engine(void* coll_api, const Bucket& buffer);
  void stop(void* handle);

  // A launch alone: KernelLaunch around "NCCL's kernel" for `parts`.
  void launch(void* group_api, CUstream stream, const Parts& parts);
  // A Group with the Colls of `parts` in this order: inline when it follows a launch on the same thread.
  void tell(const Parts& parts);
  // The same as from a CUDA host function: on a thread of its own, and done when this returns.
  void tell_by_callback(const Parts& parts);
  void launch_inline(void* group_api, CUstream stream, const Parts& parts) {
    launch(group_api, stream, parts);
    tell(parts);
  }

  // The whole inline order of one in-place all-reduce of `bucket` on `stream`.
  void all_reduce(const Bucket& bucket, CUstream stream, const char* datatype = "ncclFloat32",
                  const char* func = "AllReduce");
  // The whole inline order of one collective; `part.call` is of no account.
  void collective(Part part, CUstream stream, const char* func = "AllReduce", const char* datatype = "ncclFloat32");
  // The whole order of a launch of sends and receives, which has no Coll.
  void send_receive(CUstream stream);

 private:
  void* start(Descriptor* d);
  const int version_;
  const ProfilerV5& profiler_;
  void* context_ = nullptr;
  int mask_ = 0;
  bool finalized_ = false;
};

// What NCCL's kernel does to an in-place buffer here: the input is gone.
void nccl_kernel(const Bucket& bucket, CUstream stream);

}  // namespace gradprobe::test
