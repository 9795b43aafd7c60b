// Entry points: streams and their memory operations.
#include <type_traits>

#include "entry.hpp"

CU_ENTRY(cuStreamCreateWithPriority, (s, flags, priority), CUstream* s, unsigned int flags, int priority) {
  TRY(need_context());
  *s = new_stream(current(), flags, priority)->handle;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamCreate, (s, flags), CUstream* s, unsigned int flags) {
  return api::cuStreamCreateWithPriority(s, flags, 0);
}
CU_ENTRY(cuStreamDestroy_v2, (s), CUstream s) {
  TRY(need_init());
  return destroy_stream(s);
}
CU_ENTRY(cuStreamSynchronize, (h), CUstream h) {
  TRY(need_init());
  StreamP s;
  TRY(resolve(h, &s));
  if (s->capture) {
    invalidate(s->capture, "cuStreamSynchronize of a capturing stream");
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (s->legacy) sync_device(s->dev);
  sync_stream(s);
  return fault_of(s->dev);
}
CU_ENTRY(cuStreamQuery, (h), CUstream h) {
  TRY(need_init());
  StreamP s;
  TRY(resolve(h, &s));
  if (s->capture) {
    invalidate(s->capture, "cuStreamQuery of a capturing stream");
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (s->dev->fault) return fault_of(s->dev);
  std::lock_guard l(s->mu);
  return s->done >= s->enqueued ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CU_ENTRY(cuStreamWaitEvent, (s, e, flags), CUstream s, CUevent e, unsigned int flags) {
  TRY(need_init());
  EventP x = find_event(e);
  return x ? event_wait(s, x, flags) : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuStreamGetPriority, (h, p), CUstream h, int* p) {
  StreamP s;
  TRY(resolve(h, &s));
  *p = s->priority;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamGetFlags, (h, f), CUstream h, unsigned int* f) {
  StreamP s;
  TRY(resolve(h, &s));
  *f = s->flags;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamGetId, (h, id), CUstream h, unsigned long long* id) {
  StreamP s;
  TRY(resolve(h, &s));
  *id = s->id;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamGetCtx, (h, c), CUstream h, CUcontext* c) {
  StreamP s;
  TRY(resolve(h, &s));
  *c = handle(s->ctx);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamGetDevice, (h, d), CUstream h, CUdevice* d) {
  StreamP s;
  TRY(resolve(h, &s));
  *d = s->dev->ordinal;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamAddCallback, (h, fn, user, flags), CUstream h, CUstreamCallback fn, void* user, unsigned int flags) {
  TRY(need_init());
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::Host;
  w->run = [=](Stream* s) { fn(h, fault_of(s->dev), user); };
  return submit(h, w);
}

namespace standin::cuda::api {
namespace {
template <class T>
CUresult wait_value(CUstream s, CUdeviceptr p, T v, unsigned flags) {
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::MemOp;
  w->run = [=](Stream*) {
    auto* a = static_cast<std::atomic<T>*>(ptr(p));
    for (;;) {
      T x = a->load();
      bool ok = (flags & 3) == CU_STREAM_WAIT_VALUE_GEQ   ? static_cast<std::make_signed_t<T>>(x - v) >= 0
                : (flags & 3) == CU_STREAM_WAIT_VALUE_EQ  ? x == v
                : (flags & 3) == CU_STREAM_WAIT_VALUE_AND ? (x & v) != 0
                                                          : ~(x | v) != 0;
      if (ok) return;
      std::this_thread::yield();
    }
  };
  return submit(s, w);
}
template <class T>
CUresult write_value(CUstream s, CUdeviceptr p, T v) {
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::MemOp;
  w->run = [=](Stream*) { static_cast<std::atomic<T>*>(ptr(p))->store(v); };
  return submit(s, w);
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuStreamWaitValue32_v2, (s, p, v, f), CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int f) {
  return wait_value<uint32_t>(s, p, v, f);
}
CU_ENTRY(cuStreamWaitValue64_v2, (s, p, v, f), CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int f) {
  return wait_value<uint64_t>(s, p, v, f);
}
CU_ENTRY(cuStreamWriteValue32_v2, (s, p, v, flags), CUstream s, CUdeviceptr p, cuuint32_t v, unsigned int flags) {
  return write_value<uint32_t>(s, p, v);
}
CU_ENTRY(cuStreamWriteValue64_v2, (s, p, v, flags), CUstream s, CUdeviceptr p, cuuint64_t v, unsigned int flags) {
  return write_value<uint64_t>(s, p, v);
}
CU_ENTRY(cuStreamBatchMemOp_v2, (s, n, ops, flags), CUstream s, unsigned int n, CUstreamBatchMemOpParams* ops,
         unsigned int flags) {
  for (unsigned i = 0; i < n; i++) {
    auto& o = ops[i];
    switch (o.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        TRY(wait_value<uint32_t>(s, o.waitValue.address, o.waitValue.value, o.waitValue.flags));
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        TRY(wait_value<uint64_t>(s, o.waitValue.address, o.waitValue.value64, o.waitValue.flags));
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        TRY(write_value<uint32_t>(s, o.writeValue.address, o.writeValue.value));
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        TRY(write_value<uint64_t>(s, o.writeValue.address, o.writeValue.value64));
        break;
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}
