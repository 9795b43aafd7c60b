// Creates a ring file and writes its records. The format: include/gradprobe/ring_format.hpp.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "config.hpp"

namespace gradprobe {

// What a ring's header says of its communicator and device.
struct RingIdentity {
  std::uint64_t comm_id = 0;
  std::string comm_name;
  std::uint32_t rank = 0, nranks = 0, nnodes = 0;
  std::uint32_t profiler_abi = 0;
  unsigned char device_uuid[16] = {};
  std::string device_name;
};

// Single writer: write() and the counters are for one thread at a time; other processes may read at any moment.
class RingWriter {
 public:
  // Creates the folder (0700) and the file (0600, never an existing one), allocates it in full and maps it.
  // On failure returns null and `why` says "PATH: what; what to do". The file goes with the object unless keep() is
  // called.
  static std::unique_ptr<RingWriter> create(const Config& config, const RingIdentity& identity, std::string* why);
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  void keep() { kept_ = true; }

  const std::string& path() const { return path_; }
  std::uint64_t capacity() const { return capacity_; }
  std::uint64_t bytes() const { return bytes_; }

  // Writes one record: `head` without its stamps, crc, time_ns; `sketch` has the header's sketch_floats floats or is
  // null.
  void write(RecordHead head, const float* sketch);

  void count_measured(std::uint64_t n) { add(&LiveCounters::measured, n); }
  void count_results(std::uint64_t n) { add(&LiveCounters::results, n); }
  void count_missed(Missed reason, std::uint64_t n = 1);
  void set_marks_lost(std::uint64_t n) { set(&LiveCounters::marks_lost, n); }
  void count_gate_wait(std::uint64_t ns) { add(&LiveCounters::gated_ns, ns); }
  void set_announced(std::uint64_t n) { set(&LiveCounters::announced, n); }
  void heartbeat();
  void set_state(RingState state) { set(&LiveCounters::state, static_cast<std::uint64_t>(state)); }

  std::uint64_t written() const { return written_; }
  std::uint64_t measured() const;
  std::uint64_t results() const;
  std::uint64_t missed(Missed reason) const;

 private:
  RingWriter() = default;
  void add(std::uint64_t LiveCounters::*field, std::uint64_t n);
  void set(std::uint64_t LiveCounters::*field, std::uint64_t n);

  std::string path_;
  bool created_ = false, kept_ = false;
  unsigned char* map_ = nullptr;
  LiveCounters* live_ = nullptr;
  std::uint64_t bytes_ = 0, capacity_ = 0, written_ = 0;
  std::uint32_t record_bytes_ = 0, sketch_floats_ = 0;
};

}  // namespace gradprobe
