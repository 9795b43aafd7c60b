// Streams, stream capture and events.
#include <cstring>

#include "runtime.hpp"

using namespace standin::cudart;

EXPORT cudaError_t cudaStreamCreate(cudaStream_t* s) {
  return with_context([&] { return cuStreamCreate(s, 0); });
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  return with_context([&] { return cuStreamCreate(s, flags); });
}
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int priority) {
  return with_context([&] { return cuStreamCreateWithPriority(s, flags, priority); });
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t s) {
  return with_context([&] { return cuStreamDestroy(s); });
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  return with_context([&] { return cuStreamSynchronize(s); });
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t s) {
  return with_context([&] { return cuStreamQuery(s); });
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  return with_context([&] { return cuStreamWaitEvent(s, e, flags); });
}
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t s, int* priority) {
  return with_context([&] { return cuStreamGetPriority(s, priority); });
}
EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned* flags) {
  return with_context([&] { return cuStreamGetFlags(s, flags); });
}
EXPORT cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long* id) {
  return with_context([&] { return cuStreamGetId(s, id); });
}
EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t s, int* device) {
  return with_context([&] { return cuStreamGetDevice(s, device); });
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t callback, void* user, unsigned flags) {
  return with_context(
      [&] { return cuStreamAddCallback(s, reinterpret_cast<CUstreamCallback>(callback), user, flags); });
}
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void* user) {
  return with_context([&] { return cuLaunchHostFunc(s, function, user); });
}

// ---- capture ----
EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
  return with_context([&] { return cuStreamBeginCapture(s, as<CUstreamCaptureMode>(mode)); });
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  return with_context([&] { return cuStreamEndCapture(s, graph); });
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  return with_context([&] { return cuStreamIsCapturing(s, as<CUstreamCaptureStatus*>(status)); });
}
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return with_driver([&] { return cuThreadExchangeStreamCaptureMode(as<CUstreamCaptureMode*>(mode)); });
}

namespace {
cudaError_t capture_info(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                         const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
  static_assert(sizeof(unsigned long long) == sizeof(cuuint64_t));
  return with_context([&] {
    return cuStreamGetCaptureInfo_v3(s, as<CUstreamCaptureStatus*>(status), reinterpret_cast<cuuint64_t*>(id), graph,
                                     nodes, reinterpret_cast<const CUgraphEdgeData**>(edges), count);
  });
}
cudaError_t update_capture(cudaStream_t s, cudaGraphNode_t* nodes, const cudaGraphEdgeData* edges, size_t count,
                           unsigned flags) {
  return with_context([&] {
    return cuStreamUpdateCaptureDependencies_v2(s, nodes, reinterpret_cast<const CUgraphEdgeData*>(edges), count,
                                                flags);
  });
}
}  // namespace

// In CUDA 13 the names without a version are those of the newest versions.
#if STANDIN_CUDART == 12
EXPORT_AS(capture_info_1)
(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id) __asm__("cudaStreamGetCaptureInfo");
cudaError_t capture_info_1(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id) {
  return capture_info(s, status, id, nullptr, nullptr, nullptr, nullptr);
}
EXPORT_AS(cudaStreamGetCaptureInfo_v2)
(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
 const cudaGraphNode_t** nodes, size_t* count) {
  return capture_info(s, status, id, graph, nodes, nullptr, count);
}
EXPORT_AS(cudaStreamGetCaptureInfo_v3)
(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
 const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
  return capture_info(s, status, id, graph, nodes, edges, count);
}
EXPORT_AS(update_capture_1)
(cudaStream_t s, cudaGraphNode_t* nodes, size_t count, unsigned flags) __asm__("cudaStreamUpdateCaptureDependencies");
cudaError_t update_capture_1(cudaStream_t s, cudaGraphNode_t* nodes, size_t count, unsigned flags) {
  return update_capture(s, nodes, nullptr, count, flags);
}
EXPORT_AS(cudaStreamUpdateCaptureDependencies_v2)
(cudaStream_t s, cudaGraphNode_t* nodes, const cudaGraphEdgeData* edges, size_t count, unsigned flags) {
  return update_capture(s, nodes, edges, count, flags);
}
#else
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* status, unsigned long long* id,
                                            cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                            const cudaGraphEdgeData** edges, size_t* count) {
  return capture_info(s, status, id, graph, nodes, edges, count);
}
EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t* nodes,
                                                       const cudaGraphEdgeData* edges, size_t count, unsigned flags) {
  return update_capture(s, nodes, edges, count, flags);
}
#endif

// ---- events ----
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* e) {
  return with_context([&] { return cuEventCreate(e, 0); });
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
  return with_context([&] { return cuEventCreate(e, flags); });
}
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t e) {
  return with_context([&] { return cuEventDestroy(e); });
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  return with_context([&] { return cuEventRecord(e, s); });
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
  return with_context([&] { return cuEventRecordWithFlags(e, s, flags); });
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t e) {
  return with_context([&] { return cuEventQuery(e); });
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  return with_context([&] { return cuEventSynchronize(e); });
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return with_context([&] { return cuEventElapsedTime(milliseconds, start, end); });
}
