// What a ring's header says when its writer is a process of this machine.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>

#include "synthetic_ring.hpp"

namespace gradprobe::test {

inline std::string this_boot() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

inline std::string this_host() {
  char host[64] = {};
  gethostname(host, sizeof host - 1);
  return host;
}

inline std::uint64_t this_pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
}

inline RingSpec spec_of_writer(std::uint32_t pid) {
  RingSpec spec;
  spec.pid = pid;
  spec.boot_id = this_boot();
  spec.host = this_host();
  spec.pid_namespace = this_pid_namespace();
  return spec;
}

inline RingSpec spec_of_dead_writer() {
  return spec_of_writer(0x7FFFFFF0);
}

}  // namespace gradprobe::test
