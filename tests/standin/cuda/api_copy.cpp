// Entry points: copies and sets.
#include <algorithm>
#include <cstring>

#include "entry.hpp"

namespace standin::cuda::api {
namespace {
bool pageable(const void* p) {
  return !find_alloc(p, nullptr);
}

// Runs work on the legacy stream, or a given one, and waits.
CUresult run_sync(const WorkP& w, CUstream stream = nullptr) {
  uint64_t ticket = 0;
  StreamP s;
  bool captured = false;
  TRY(submit(stream, w, &captured, &ticket, &s));
  if (!captured) wait_ticket(s, ticket);
  return fault_of(s->dev);
}

WorkP copy_work(void* dst, const void* src, size_t n) {
  return copy2d_work(dst, n, src, n, n, 1);
}

CUresult copy_sync(void* dst, const void* src, size_t n) {
  TRY(unsafe_call());
  return run_sync(copy_work(dst, src, n));
}
CUresult copy_async(void* dst, const void* src, size_t n, CUstream stream) {
  StreamP s;
  TRY(resolve(stream, &s));
  if (s->capture) return submit(stream, copy_work(dst, src, n));
  // Pageable host memory: a destination is filled on return, a source may be reused at once.
  if (pageable(dst)) return run_sync(copy_work(dst, src, n), stream);
  if (pageable(src)) {
    auto from = static_cast<const char*>(src);
    auto staged = std::make_shared<std::vector<char>>(from, from + n);
    auto w = std::make_shared<Work>();
    w->kind = WorkKind::Memcpy;
    w->run = [=](Stream* x) {
      if (!x->dev->fault) memcpy(dst, staged->data(), n);
    };
    return submit(stream, w);
  }
  return submit(stream, copy_work(dst, src, n));
}

template <class T>
void fill_rows(char* dst, size_t pitch, T value, size_t width, size_t height) {
  for (size_t y = 0; y < height; y++) std::fill_n(reinterpret_cast<T*>(dst + y * pitch), width, value);
}
}  // namespace

WorkP copy2d_work(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height) {
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::Memcpy;
  w->run = [=](Stream* s) {
    if (s->dev->fault) return;
    for (size_t y = 0; y < height; y++)
      memmove(static_cast<char*>(dst) + y * dpitch, static_cast<const char*>(src) + y * spitch, width);
  };
  return w;
}
WorkP fill_work(void* dst, size_t pitch, unsigned value, unsigned element_bytes, size_t width, size_t height) {
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::Memset;
  w->run = [=](Stream* s) {
    if (s->dev->fault) return;
    auto* to = static_cast<char*>(dst);
    switch (element_bytes) {
      case 1:
        return fill_rows(to, pitch, static_cast<uint8_t>(value), width, height);
      case 2:
        return fill_rows(to, pitch, static_cast<uint16_t>(value), width, height);
      default:
        return fill_rows(to, pitch, value, width, height);
    }
  };
  return w;
}
}  // namespace standin::cuda::api

CU_ENTRY(cuMemcpy, (d, s, n), CUdeviceptr d, CUdeviceptr s, size_t n) {
  TRY(need_context());
  return copy_sync(ptr(d), ptr(s), n);
}
CU_ENTRY(cuMemcpyHtoD_v2, (d, s, n), CUdeviceptr d, const void* s, size_t n) {
  TRY(need_context());
  return copy_sync(ptr(d), s, n);
}
CU_ENTRY(cuMemcpyDtoH_v2, (d, s, n), void* d, CUdeviceptr s, size_t n) {
  TRY(need_context());
  return copy_sync(d, ptr(s), n);
}
CU_ENTRY(cuMemcpyDtoD_v2, (d, s, n), CUdeviceptr d, CUdeviceptr s, size_t n) {
  TRY(need_context());
  return copy_sync(ptr(d), ptr(s), n);
}
CU_ENTRY(cuMemcpyPeer, (d, context, s, context2, n), CUdeviceptr d, CUcontext context, CUdeviceptr s,
         CUcontext context2, size_t n) {
  TRY(need_context());
  return copy_sync(ptr(d), ptr(s), n);
}
CU_ENTRY(cuMemcpyAsync, (d, s, n, h), CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h) {
  TRY(need_context());
  return copy_async(ptr(d), ptr(s), n, h);
}
CU_ENTRY(cuMemcpyHtoDAsync_v2, (d, s, n, h), CUdeviceptr d, const void* s, size_t n, CUstream h) {
  TRY(need_context());
  return copy_async(ptr(d), s, n, h);
}
CU_ENTRY(cuMemcpyDtoHAsync_v2, (d, s, n, h), void* d, CUdeviceptr s, size_t n, CUstream h) {
  TRY(need_context());
  return copy_async(d, ptr(s), n, h);
}
CU_ENTRY(cuMemcpyDtoDAsync_v2, (d, s, n, h), CUdeviceptr d, CUdeviceptr s, size_t n, CUstream h) {
  TRY(need_context());
  return copy_async(ptr(d), ptr(s), n, h);
}
CU_ENTRY(cuMemcpyPeerAsync, (d, context, s, context2, n, h), CUdeviceptr d, CUcontext context, CUdeviceptr s,
         CUcontext context2, size_t n, CUstream h) {
  TRY(need_context());
  return copy_async(ptr(d), ptr(s), n, h);
}

CU_ENTRY(cuMemsetD8_v2, (p, v, n), CUdeviceptr p, unsigned char v, size_t n) {
  TRY(need_context());
  TRY(unsafe_call());
  return run_sync(fill_work(ptr(p), 0, v, 1, n, 1));
}
CU_ENTRY(cuMemsetD16_v2, (p, v, n), CUdeviceptr p, unsigned short v, size_t n) {
  TRY(need_context());
  TRY(unsafe_call());
  return run_sync(fill_work(ptr(p), 0, v, 2, n, 1));
}
CU_ENTRY(cuMemsetD32_v2, (p, v, n), CUdeviceptr p, unsigned int v, size_t n) {
  TRY(need_context());
  TRY(unsafe_call());
  return run_sync(fill_work(ptr(p), 0, v, 4, n, 1));
}
CU_ENTRY(cuMemsetD8Async, (p, v, n, s), CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
  TRY(need_context());
  return submit(s, fill_work(ptr(p), 0, v, 1, n, 1));
}
CU_ENTRY(cuMemsetD16Async, (p, v, n, s), CUdeviceptr p, unsigned short v, size_t n, CUstream s) {
  TRY(need_context());
  return submit(s, fill_work(ptr(p), 0, v, 2, n, 1));
}
CU_ENTRY(cuMemsetD32Async, (p, v, n, s), CUdeviceptr p, unsigned int v, size_t n, CUstream s) {
  TRY(need_context());
  return submit(s, fill_work(ptr(p), 0, v, 4, n, 1));
}
