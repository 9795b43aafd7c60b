// Writes rings for tests, store by store, from the format's description in ring_format.hpp. Not the plugin's writer: a
// mistake in that one must not hide here.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <gradprobe/ring_format.hpp>

namespace gradprobe::test {

// CRC-32C bit by bit: polynomial 0x1EDC6F41, reflected.
inline std::uint32_t slow_crc32c(const unsigned char* data, std::size_t bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (std::size_t i = 0; i < bytes; i++) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; bit++) crc = (crc & 1u) != 0 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
  }
  return ~crc;
}

struct RingSpec {
  std::uint64_t comm_id = 0xC0FFEE;
  std::uint32_t rank = 0;
  std::uint32_t nranks = 1;
  std::uint32_t sketch_floats = 256;
  std::uint64_t capacity = 8;
  std::uint32_t pid = 0x7FFFFFF0;  // no such process
  std::uint64_t start_time_ns = 1'700'000'000'000'000'000;
  std::string boot_id;
  std::string host = "testhost";
  std::uint64_t pid_namespace = 0;
  std::uint64_t ops_per_step = 0;
  std::uint32_t profiler_abi = 6;
  std::uint64_t features = 0;
};

inline FileHeader make_header(const RingSpec& spec) {
  FileHeader h{};
  std::memcpy(h.magic, "GRADPRB\n", 8);
  h.version = 1;
  h.header_bytes = 4096;
  h.record_bytes = (256 + 4 * spec.sketch_floats + 63) / 64 * 64;
  h.sketch_floats = spec.sketch_floats;
  h.capacity = spec.capacity;
  h.comm_id = spec.comm_id;
  h.rank = spec.rank;
  h.nranks = spec.nranks;
  h.nnodes = 1;
  h.profiler_abi = spec.profiler_abi;
  h.features_compatible = spec.features;
  h.sketch_seed = 42;
  h.start_time_ns = spec.start_time_ns;
  h.pid = spec.pid;
  h.ops_per_step = spec.ops_per_step;
  std::strncpy(h.boot_id, spec.boot_id.c_str(), sizeof h.boot_id - 1);
  std::strncpy(h.host, spec.host.c_str(), sizeof h.host - 1);
  h.pid_namespace = spec.pid_namespace;
  std::strncpy(h.job, "testjob", sizeof h.job - 1);
  std::strncpy(h.plugin_version, "0.1.0", sizeof h.plugin_version - 1);
  h.crc = slow_crc32c(reinterpret_cast<const unsigned char*>(&h), offsetof(FileHeader, crc));
  return h;
}

inline RecordHead make_collective(std::uint64_t op, std::uint64_t step, std::uint32_t step_op,
                                  std::uint32_t ops_per_step, std::uint64_t count, double sum_squares) {
  RecordHead r{};
  r.kind = 1;
  r.op = op;
  r.step = step;
  r.step_op = step_op;
  r.ops_per_step = ops_per_step;
  r.flags = step == kNone ? 0u : 1u;
  CollectiveBody& b = r.collective;
  b = {};
  b.count = count;
  b.sum_squares = sum_squares;
  b.max_abs = 1;
  b.zero_count = kNone;
  b.first_nonfinite = kNone;
  b.sketch_key = 0x5EED + op;
  b.function = static_cast<std::uint8_t>(Function::all_reduce);
  b.datatype = static_cast<std::uint8_t>(Datatype::f32);
  return r;
}

inline RecordHead make_scalar(std::uint64_t op, std::uint64_t step, std::uint32_t step_op, std::uint32_t ops_per_step,
                              float value) {
  RecordHead r = make_collective(op, step, step_op, ops_per_step, 1, 0);
  r.kind = 3;
  r.collective.raw_count = 1;
  std::memcpy(r.collective.raw, &value, sizeof value);
  return r;
}

// What the collective left on this rank, as the record of its input identifies it.
inline RecordHead make_result(const RecordHead& input, std::uint64_t fingerprint) {
  RecordHead r = input;
  r.kind = 4;
  r.missed = 0;
  r.collective.fingerprint = fingerprint;
  return r;
}

// What the application said before op `op`. `step` is the one that it is in; kNone: none was marked yet.
inline RecordHead make_mark(std::uint64_t op, std::uint64_t step, MarkKind kind, const std::string& name = "",
                            double value = 0, std::uint64_t number = kNone) {
  RecordHead r{};
  r.kind = 5;
  r.op = op;
  r.step = step;
  r.flags = step == kNone ? 0u : 1u;
  MarkBody& b = r.mark;
  b = {};
  b.kind = static_cast<std::uint8_t>(kind);
  b.value = value;
  b.number = number;
  std::memcpy(b.name, name.data(), std::min(name.size(), sizeof b.name));
  return r;
}

// Sum modulo 2^64 of the buffer's 32-bit words, the last one filled up with zeros.
inline std::uint64_t fingerprint_of(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes; i++) sum += std::uint64_t{from[i]} << (8 * (i % 4));
  return sum;
}

// A ring in memory that can be saved, or cut after any byte that its writer stores.
class SyntheticRing {
 public:
  explicit SyntheticRing(const RingSpec& spec) : spec_(spec), header_(make_header(spec)) {
    bytes_.assign(4096 + spec.capacity * header_.record_bytes, 0);
    std::memcpy(bytes_.data(), &header_, sizeof header_);
  }

  const RingSpec& spec() const { return spec_; }
  std::uint64_t written() const { return written_; }
  std::vector<unsigned char>& bytes() { return bytes_; }
  std::size_t slot(std::uint64_t number) const { return 4096 + number % spec_.capacity * header_.record_bytes; }

  // The stores that write the next record, in order: one (offset, byte) each.
  std::vector<std::pair<std::size_t, unsigned char>> stores(RecordHead head, const std::vector<float>& sketch) const {
    const std::size_t at = slot(written_);
    const std::uint64_t stamp = written_ + 1;
    head.before = head.after = stamp;
    if (!sketch.empty()) head.flags |= kFlagSketchPresent;
    std::vector<unsigned char> image(256 + 4 * spec_.sketch_floats, 0);
    std::memcpy(image.data(), &head, sizeof head);
    if (!sketch.empty()) std::memcpy(image.data() + 256, sketch.data(), 4 * sketch.size());
    const std::uint32_t crc = slow_crc32c(image.data() + 20, image.size() - 20);
    std::memcpy(image.data() + 16, &crc, sizeof crc);
    std::vector<std::pair<std::size_t, unsigned char>> all;
    const auto put = [&](std::size_t first, std::size_t end) {
      for (std::size_t i = first; i < end; i++) all.emplace_back(at + i, image[i]);
    };
    put(0, 8);
    put(20, image.size());
    put(16, 20);
    put(8, 16);
    for (std::size_t i = 0; i < 8; i++) all.emplace_back(2048 + i, static_cast<unsigned char>(stamp >> (8 * i)));
    return all;
  }

  void append(const RecordHead& head, const std::vector<float>& sketch = {}) {
    for (const auto& [offset, byte] : stores(head, sketch)) bytes_[offset] = byte;
    written_++;
  }

  void set_counter(std::size_t offset, std::uint64_t value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof value);
  }
  void finalize() { set_counter(2056, 1); }
  void set_heartbeat(std::uint64_t ns) { set_counter(2064, ns); }

  void save(const std::string& path) const {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
    if (!out) throw std::runtime_error("can't write " + path);
  }

 private:
  RingSpec spec_;
  FileHeader header_;
  std::vector<unsigned char> bytes_;
  std::uint64_t written_ = 0;
};

// An anonymous file with `bytes`; the caller owns the descriptor.
inline int anonymous_file(const unsigned char* bytes, std::size_t size) {
  const int fd = memfd_create("gradprobe-test", MFD_CLOEXEC);
  if (fd < 0) throw std::runtime_error("memfd_create");
  for (std::size_t done = 0; done < size;) {
    const ssize_t n = ::pwrite(fd, bytes + done, size - done, static_cast<off_t>(done));
    if (n <= 0) throw std::runtime_error("pwrite");
    done += static_cast<std::size_t>(n);
  }
  return fd;
}
inline int anonymous_file(const std::vector<unsigned char>& bytes) {
  return anonymous_file(bytes.data(), bytes.size());
}

}  // namespace gradprobe::test
