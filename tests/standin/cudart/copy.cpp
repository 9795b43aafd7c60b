// Copies and sets, of memory and of device variables.
#include "runtime.hpp"

using namespace standin::cudart;

EXPORT cudaError_t cudaMemcpy(void* to, const void* source, size_t bytes, cudaMemcpyKind) {
  return with_context([&] { return cuMemcpy(address(to), address(source), bytes); });
}
EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* source, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
  return with_context([&] { return cuMemcpyAsync(address(to), address(source), bytes, s); });
}
EXPORT cudaError_t cudaMemcpyPeer(void* to, int, const void* source, int, size_t bytes) {
  return cudaMemcpy(to, source, bytes, cudaMemcpyDefault);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* source, int, size_t bytes, cudaStream_t s) {
  return cudaMemcpyAsync(to, source, bytes, cudaMemcpyDefault, s);
}

namespace {
cudaError_t copy_rows(void* to, size_t to_pitch, const void* source, size_t pitch, size_t width, size_t height,
                      cudaStream_t s) {
  return with_context([&] {
    for (size_t y = 0; y < height; y++) {
      CUresult r = cuMemcpyAsync(address(to) + y * to_pitch, address(source) + y * pitch, width, s);
      if (r) return r;
    }
    return CUDA_SUCCESS;
  });
}
cudaError_t copy_batch(void* const* to, const void* const* source, const size_t* bytes, size_t count, cudaStream_t s) {
  return with_context([&] {
    for (size_t i = 0; i < count; i++)
      if (CUresult r = cuMemcpyAsync(address(to[i]), address(source[i]), bytes[i], s)) return r;
    return CUDA_SUCCESS;
  });
}
}  // namespace
EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* source, size_t pitch, size_t width,
                                     size_t height, cudaMemcpyKind, cudaStream_t s) {
  return copy_rows(to, to_pitch, source, pitch, width, height, s);
}
EXPORT cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* source, size_t pitch, size_t width,
                                size_t height, cudaMemcpyKind) {
  cudaError_t e = copy_rows(to, to_pitch, source, pitch, width, height, nullptr);
  return e ? e : with_context([] { return cuStreamSynchronize(nullptr); });
}
#if STANDIN_CUDART == 12
EXPORT_AS(batch_copy)
(void* const* to, const void* const* source, const size_t* bytes, size_t count, cudaMemcpyAttributes*, size_t*, size_t,
 size_t*, cudaStream_t s) __asm__("cudaMemcpyBatchAsync");
cudaError_t batch_copy(void* const* to, const void* const* source, const size_t* bytes, size_t count,
                       cudaMemcpyAttributes*, size_t*, size_t, size_t*, cudaStream_t s) {
  return copy_batch(to, source, bytes, count, s);
}
#else
EXPORT cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* source, const size_t* bytes, size_t count,
                                        cudaMemcpyAttributes*, size_t*, size_t, cudaStream_t s) {
  return copy_batch(to, source, bytes, count, s);
}
#endif

EXPORT cudaError_t cudaMemset(void* p, int value, size_t bytes) {
  return with_context([&] { return cuMemsetD8(address(p), static_cast<unsigned char>(value), bytes); });
}
EXPORT cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t s) {
  return with_context([&] { return cuMemsetD8Async(address(p), static_cast<unsigned char>(value), bytes, s); });
}

EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, size_t bytes, size_t offset,
                                           cudaMemcpyKind kind, cudaStream_t s) {
  void* p = nullptr;
  cudaError_t e = cudaGetSymbolAddress(&p, symbol);
  return e ? e : cudaMemcpyAsync(static_cast<char*>(p) + offset, source, bytes, kind, s);
}
EXPORT cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind) {
  void* p = nullptr;
  cudaError_t e = cudaGetSymbolAddress(&p, symbol);
  return e ? e : cudaMemcpy(static_cast<char*>(p) + offset, source, bytes, kind);
}
EXPORT cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset,
                                             cudaMemcpyKind kind, cudaStream_t s) {
  void* p = nullptr;
  cudaError_t e = cudaGetSymbolAddress(&p, symbol);
  return e ? e : cudaMemcpyAsync(to, static_cast<char*>(p) + offset, bytes, kind, s);
}
EXPORT cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                        cudaMemcpyKind kind) {
  void* p = nullptr;
  cudaError_t e = cudaGetSymbolAddress(&p, symbol);
  return e ? e : cudaMemcpy(to, static_cast<char*>(p) + offset, bytes, kind);
}
