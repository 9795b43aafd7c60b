// Graphs and user objects.
#include "runtime.hpp"

using namespace standin::cudart;

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return with_driver([&] { return cuGraphCreate(graph, flags); });
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return with_driver([&] { return cuGraphDestroy(graph); });
}
EXPORT cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return with_driver([&] { return cuGraphClone(clone, graph); });
}
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return with_context([&] { return cuGraphInstantiateWithFlags(exec, graph, flags); });
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(exec, graph, flags);
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
  return with_context([&] { return cuGraphLaunch(exec, s); });
}
EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s) {
  return with_context([&] { return cuGraphUpload(exec, s); });
}
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return with_driver([&] { return cuGraphExecDestroy(exec); });
}
EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo));
  return with_context(
      [&] { return cuGraphExecUpdate(exec, graph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(info)); });
}

// ---- nodes ----
EXPORT cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                         size_t count) {
  return with_driver([&] { return cuGraphAddEmptyNode(node, graph, after, count); });
}
EXPORT cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                        size_t count, const cudaHostNodeParams* p) {
  CUDA_HOST_NODE_PARAMS params = {};
  params.fn = p->fn;
  params.userData = p->userData;
  return with_driver([&] { return cuGraphAddHostNode(node, graph, after, count, &params); });
}
EXPORT cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                          size_t count, const cudaKernelNodeParams* p) {
  if (CUresult r = need_context()) return from(r);
  CUDA_KERNEL_NODE_PARAMS params = {};
  params.func = function_of(p->func);
  if (!params.func) return note(cudaErrorInvalidDeviceFunction);
  params.gridDimX = p->gridDim.x, params.gridDimY = p->gridDim.y, params.gridDimZ = p->gridDim.z;
  params.blockDimX = p->blockDim.x, params.blockDimY = p->blockDim.y, params.blockDimZ = p->blockDim.z;
  params.sharedMemBytes = p->sharedMemBytes;
  params.kernelParams = p->kernelParams;
  params.extra = p->extra;
  return from(cuGraphAddKernelNode(node, graph, after, count, &params));
}
EXPORT cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                               size_t count, cudaEvent_t e) {
  return with_driver([&] { return cuGraphAddEventRecordNode(node, graph, after, count, e); });
}
EXPORT cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                             size_t count, cudaEvent_t e) {
  return with_driver([&] { return cuGraphAddEventWaitNode(node, graph, after, count, e); });
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return with_driver([&] { return cuGraphGetNodes(graph, nodes, count); });
}
EXPORT cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return with_driver([&] { return cuGraphGetRootNodes(graph, nodes, count); });
}
EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  CUgraphNodeType found = CU_GRAPH_NODE_TYPE_EMPTY;
  cudaError_t e = with_driver([&] { return cuGraphNodeGetType(node, &found); });
  if (!e) *type = as<cudaGraphNodeType>(found);
  return e;
}

namespace {
cudaError_t add_dependencies(cudaGraph_t graph, const cudaGraphNode_t* before, const cudaGraphNode_t* after,
                             const cudaGraphEdgeData* edges, size_t count) {
  return with_driver([&] {
    return cuGraphAddDependencies_v2(graph, before, after, reinterpret_cast<const CUgraphEdgeData*>(edges), count);
  });
}
cudaError_t get_dependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData* edges, size_t* count) {
  return with_driver(
      [&] { return cuGraphNodeGetDependencies_v2(node, nodes, reinterpret_cast<CUgraphEdgeData*>(edges), count); });
}
}  // namespace
#if STANDIN_CUDART == 12
EXPORT_AS(add_dependencies_1)
(cudaGraph_t graph, const cudaGraphNode_t* before, const cudaGraphNode_t* after,
 size_t count) __asm__("cudaGraphAddDependencies");
cudaError_t add_dependencies_1(cudaGraph_t graph, const cudaGraphNode_t* before, const cudaGraphNode_t* after,
                               size_t count) {
  return add_dependencies(graph, before, after, nullptr, count);
}
EXPORT_AS(cudaGraphAddDependencies_v2)
(cudaGraph_t graph, const cudaGraphNode_t* before, const cudaGraphNode_t* after, const cudaGraphEdgeData* edges,
 size_t count) {
  return add_dependencies(graph, before, after, edges, count);
}
EXPORT_AS(get_dependencies_1)
(cudaGraphNode_t node, cudaGraphNode_t* nodes, size_t* count) __asm__("cudaGraphNodeGetDependencies");
cudaError_t get_dependencies_1(cudaGraphNode_t node, cudaGraphNode_t* nodes, size_t* count) {
  return get_dependencies(node, nodes, nullptr, count);
}
#else
EXPORT cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* before,
                                            const cudaGraphNode_t* after, const cudaGraphEdgeData* edges,
                                            size_t count) {
  return add_dependencies(graph, before, after, edges, count);
}
EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData* edges,
                                                size_t* count) {
  return get_dependencies(node, nodes, edges, count);
}
#endif

// ---- user objects ----
EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* p, cudaHostFn_t destroy, unsigned count,
                                        unsigned flags) {
  return with_driver([&] { return cuUserObjectCreate(object, p, destroy, count, flags); });
}
EXPORT cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  return with_driver([&] { return cuUserObjectRetain(object, count); });
}
EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  return with_driver([&] { return cuUserObjectRelease(object, count); });
}
EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count,
                                             unsigned flags) {
  return with_driver([&] { return cuGraphRetainUserObject(graph, object, count, flags); });
}
EXPORT cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count) {
  return with_driver([&] { return cuGraphReleaseUserObject(graph, object, count); });
}
