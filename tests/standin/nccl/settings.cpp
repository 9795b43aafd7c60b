#include "settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace standin {
namespace {

bool read_number(const char* name, long lowest, long highest, long* out, std::string* error) {
  const char* text = getenv(name);
  if (!text || !*text) return true;
  char* end = nullptr;
  long value = strtol(text, &end, 10);
  if (*end || value < lowest || value > highest) {
    *error = std::string(name) + "='" + text + "' is not a number from " + std::to_string(lowest) + " to " +
             std::to_string(highest) + ": correct it or unset it";
    return false;
  }
  *out = value;
  return true;
}

bool read_version(Settings* s, std::string* error) {
  const char* text = getenv("STANDIN_NCCL_VERSION");
  if (!text || !*text) return true;
  int major = 0, minor = 0, patch = 0, used = 0;
  int fields = sscanf(text, "%d.%d%n.%d%n", &major, &minor, &used, &patch, &used);
  if (fields < 2 || static_cast<size_t>(used) != strlen(text) || major != 2 || minor < 8 || minor > 99 || patch < 0 ||
      patch > 99) {
    *error = std::string("STANDIN_NCCL_VERSION='") + text +
             "' is not a release from 2.8 on: give it as major.minor.patch, for example 2.28.9";
    return false;
  }
  s->minor = minor;
  s->patch = patch;
  return true;
}

bool read_flip(Settings* s, std::string* error) {
  const char* text = getenv("STANDIN_NCCL_FLIP");
  if (!text || !*text) return true;
  Flip f;
  unsigned long op = 0;
  int used = 0;
  int fields = sscanf(text, "%d:%lu:%zu:%u%n", &f.rank, &op, &f.element, &f.bit, &used);
  if (fields < 4 || static_cast<size_t>(used) != strlen(text) || f.bit > 63) {
    *error = std::string("STANDIN_NCCL_FLIP='") + text + "' is not rank:op:element:bit, for example 1:20:7:3";
    return false;
  }
  f.op = op;
  s->flip = f;
  return true;
}

}  // namespace

bool read_settings(Settings* out, std::string* error) {
  Settings s;
  long nodes = 1, callback = 0, colls = 0, chunk_kib = 0, timeout = 120, blocking = 0, allgatherv = 1, symmetric = 0,
       copy_engine = 0;
  if (!read_version(&s, error) || !read_flip(&s, error) ||
      !read_number("STANDIN_NCCL_SYMMETRIC", 0, 1L << 40, &symmetric, error) ||
      !read_number("STANDIN_NCCL_COPY_ENGINE", 0, 1L << 40, &copy_engine, error) ||
      !read_number("STANDIN_NCCL_NODES", 1, 1 << 20, &nodes, error) ||
      !read_number("STANDIN_NCCL_HOST_CALLBACK", 0, 2, &callback, error) ||
      !read_number("STANDIN_NCCL_MAX_COLLS_PER_LAUNCH", 0, 1 << 20, &colls, error) ||
      !read_number("STANDIN_NCCL_CHUNK_KIB", 0, 1 << 20, &chunk_kib, error) ||
      !read_number("STANDIN_NCCL_JOIN_TIMEOUT", 1, 1 << 20, &timeout, error) ||
      !read_number("CUDA_LAUNCH_BLOCKING", 0, 1 << 20, &blocking, error) ||
      !read_number("NCCL_ALLGATHERV_ENABLE", 0, 1 << 20, &allgatherv, error))
    return false;
  s.nodes = static_cast<int>(nodes);
  s.proxy_work = callback > 0 || nodes > 1;
  s.always_host_callback = callback == 2;
  s.launch_blocking = blocking != 0;
  s.allgatherv = s.minor >= 29 && allgatherv != 0;
  s.max_colls_per_launch = static_cast<int>(colls);
  s.symmetric_bytes = static_cast<size_t>(symmetric);
  s.copy_engine_bytes = static_cast<size_t>(copy_engine);
  s.chunk_bytes = static_cast<size_t>(chunk_kib) << 10;
  s.join_timeout_s = static_cast<int>(timeout);
  *out = s;
  return true;
}

}  // namespace standin
