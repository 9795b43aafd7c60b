// Entry points: events.
#include "entry.hpp"

CU_ENTRY(cuEventCreate, (e, flags), CUevent* e, unsigned int flags) {
  TRY(need_context());
  *e = reinterpret_cast<CUevent>(new_event(flags).get());
  return CUDA_SUCCESS;
}
CU_ENTRY(cuEventDestroy_v2, (e), CUevent e) {
  TRY(need_init());
  return drop_event(e);
}
CU_ENTRY(cuEventRecordWithFlags, (e, s, flags), CUevent e, CUstream s, unsigned int flags) {
  TRY(need_init());
  EventP x = find_event(e);
  return x ? event_record(x, s, flags) : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuEventRecord, (e, s), CUevent e, CUstream s) {
  return api::cuEventRecordWithFlags(e, s, 0);
}
CU_ENTRY(cuEventQuery, (h), CUevent h) {
  TRY(need_init());
  EventP e = find_event(h);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (e->capture && !e->capture->ended) {
    invalidate(e->capture, "a query of a captured event");
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (e->dev && e->dev->fault) return fault_of(e->dev);
  RecordP r = e->current();
  if (!r) return CUDA_SUCCESS;
  std::lock_guard l(r->mu);
  return r->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CU_ENTRY(cuEventSynchronize, (h), CUevent h) {
  TRY(need_init());
  EventP e = find_event(h);
  if (!e) return CUDA_ERROR_INVALID_HANDLE;
  if (e->capture && !e->capture->ended) {
    invalidate(e->capture, "a query of a captured event");
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (RecordP r = e->current()) r->wait();
  return e->dev ? fault_of(e->dev) : CUDA_SUCCESS;
}
CU_ENTRY(cuEventElapsedTime_v2, (ms, a, b), float* ms, CUevent a, CUevent b) {
  TRY(need_init());
  EventP x = find_event(a), y = find_event(b);
  if (!x || !y) return CUDA_ERROR_INVALID_HANDLE;
  if ((x->flags | y->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
  RecordP r = x->current(), q = y->current();
  if (!r || !q) return CUDA_ERROR_INVALID_HANDLE;
  {
    std::lock_guard l(r->mu);
    if (!r->done) return CUDA_ERROR_NOT_READY;
  }
  std::lock_guard l(q->mu);
  if (!q->done) return CUDA_ERROR_NOT_READY;
  *ms = static_cast<float>((q->time - r->time) * 1e3);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuEventElapsedTime, (ms, a, b), float* ms, CUevent a, CUevent b) {
  return api::cuEventElapsedTime_v2(ms, a, b);
}
