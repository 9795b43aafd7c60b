// Entry points: stream capture.
#include <algorithm>

#include "entry.hpp"

CU_ENTRY(cuStreamBeginCapture_v2, (s, m), CUstream s, CUstreamCaptureMode m) {
  TRY(need_init());
  CUresult r = begin_capture(s, m);
  trace("\"src\":\"cuda\",\"ev\":\"begin_capture\",\"stream\":\"%p\",\"mode\":%d,\"result\":%d", static_cast<void*>(s),
        static_cast<int>(m), static_cast<int>(r));
  return r;
}
CU_ENTRY(cuStreamEndCapture, (s, out), CUstream s, CUgraph* out) {
  TRY(need_init());
  Graph* x = nullptr;
  CUresult r = end_capture(s, &x);
  *out = reinterpret_cast<CUgraph>(x);
  trace("\"src\":\"cuda\",\"ev\":\"end_capture\",\"stream\":\"%p\",\"graph\":\"%p\",\"nodes\":%zu,\"result\":%d",
        static_cast<void*>(s), static_cast<void*>(x), x ? x->nodes.size() : 0, static_cast<int>(r));
  return r;
}
CU_ENTRY(cuStreamIsCapturing, (h, st), CUstream h, CUstreamCaptureStatus* st) {
  TRY(need_init());
  StreamP s;
  TRY(resolve(h, &s));
  std::lock_guard lock(big_lock());
  *st = !s->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
        : s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamGetCaptureInfo_v3, (h, st, id, graph, deps, edges, n), CUstream h, CUstreamCaptureStatus* st,
         cuuint64_t* id, CUgraph* graph, const CUgraphNode** deps, const CUgraphEdgeData** edges, size_t* n) {
  TRY(api::cuStreamIsCapturing(h, st));
  StreamP s;
  TRY(resolve(h, &s));
  std::lock_guard lock(big_lock());
  if (*st != CU_STREAM_CAPTURE_STATUS_ACTIVE || !s->capture) return CUDA_SUCCESS;
  if (id) *id = s->capture->id;
  if (graph) *graph = reinterpret_cast<CUgraph>(s->capture->graph);
  if (deps) *deps = reinterpret_cast<const CUgraphNode*>(s->capture_set.data());
  if (n) *n = s->capture_set.size();
  if (edges) {
    static thread_local std::vector<CUgraphEdgeData> zero;
    zero.assign(s->capture_set.size() + 1, CUgraphEdgeData{});
    *edges = zero.data();
  }
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamGetCaptureInfo_v2, (h, st, id, graph, deps, n), CUstream h, CUstreamCaptureStatus* st, cuuint64_t* id,
         CUgraph* graph, const CUgraphNode** deps, size_t* n) {
  return api::cuStreamGetCaptureInfo_v3(h, st, id, graph, deps, nullptr, n);
}
CU_ENTRY(cuStreamGetCaptureInfo, (h, st, id), CUstream h, CUstreamCaptureStatus* st, cuuint64_t* id) {
  return api::cuStreamGetCaptureInfo_v3(h, st, id, nullptr, nullptr, nullptr, nullptr);
}
CU_ENTRY(cuStreamUpdateCaptureDependencies_v2, (h, deps, edges, n, flags), CUstream h, CUgraphNode* deps,
         const CUgraphEdgeData* edges, size_t n, unsigned int flags) {
  TRY(need_init());
  StreamP s;
  TRY(resolve(h, &s));
  std::lock_guard lock(big_lock());
  if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto list = node_list(deps, n);
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) s->capture_set.clear();
  for (Node* x : list)
    if (std::find(s->capture_set.begin(), s->capture_set.end(), x) == s->capture_set.end()) s->capture_set.push_back(x);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuStreamUpdateCaptureDependencies, (h, deps, n, flags), CUstream h, CUgraphNode* deps, size_t n,
         unsigned int flags) {
  return api::cuStreamUpdateCaptureDependencies_v2(h, deps, nullptr, n, flags);
}
CU_ENTRY(cuThreadExchangeStreamCaptureMode, (m), CUstreamCaptureMode* m) {
  std::swap(*m, thread_capture_mode());
  return CUDA_SUCCESS;
}
