// Entry points: nodes of graphs.
#include <algorithm>
#include <cstring>

#include "entry.hpp"

namespace standin::cuda::api {
std::vector<Node*> node_list(const CUgraphNode* n, size_t count) {
  std::vector<Node*> v;
  for (size_t i = 0; i < count; i++) v.push_back(as_node(n[i]));
  return v;
}

namespace {
CUresult put_node(CUgraphNode* out, CUgraph x, const CUgraphNode* deps, size_t n, const WorkP& w) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  *out = handle(add_node(as_graph(x), w, node_list(deps, n)));
  return CUDA_SUCCESS;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuGraphAddEmptyNode, (out, x, deps, n), CUgraphNode* out, CUgraph x, const CUgraphNode* deps, size_t n) {
  return put_node(out, x, deps, n, std::make_shared<Work>());
}
CU_ENTRY(cuGraphAddHostNode, (out, x, deps, n, p), CUgraphNode* out, CUgraph x, const CUgraphNode* deps, size_t n,
         const CUDA_HOST_NODE_PARAMS* p) {
  return put_node(out, x, deps, n, host_work(p->fn, p->userData, "host_node"));
}
CU_ENTRY(cuGraphHostNodeGetParams, (n, p), CUgraphNode n, CUDA_HOST_NODE_PARAMS* p) {
  p->fn = as_node(n)->work->fn;
  p->userData = as_node(n)->work->user;
  return CUDA_SUCCESS;
}
CU_ENTRY(cuGraphAddKernelNode_v2, (out, x, deps, n, p), CUgraphNode* out, CUgraph x, const CUgraphNode* deps, size_t n,
         const CUDA_KERNEL_NODE_PARAMS* p) {
  TRY(need_context());
  Kernel* k = find_kernel(p->func ? static_cast<void*>(p->func) : static_cast<void*>(p->kern));
  if (!k) return CUDA_ERROR_INVALID_HANDLE;
  LaunchRequest request{"",
                        {p->gridDimX, p->gridDimY, p->gridDimZ},
                        {p->blockDimX, p->blockDimY, p->blockDimZ},
                        p->sharedMemBytes,
                        nullptr,
                        p->kernelParams,
                        p->extra,
                        nullptr,
                        0};
  std::shared_ptr<KernelCall> call;
  TRY(make_call(k, request, current()->dev, &call));
  return put_node(out, x, deps, n, kernel_work(call));
}
CU_ENTRY(cuGraphAddMemcpyNode, (out, x, deps, n, c, context), CUgraphNode* out, CUgraph x, const CUgraphNode* deps,
         size_t n, const CUDA_MEMCPY3D* c, CUcontext context) {
  if (c->Depth > 1 || c->srcMemoryType == CU_MEMORYTYPE_ARRAY || c->dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return CUDA_ERROR_NOT_SUPPORTED;
  const char* s = static_cast<const char*>(c->srcMemoryType == CU_MEMORYTYPE_HOST ? c->srcHost : ptr(c->srcDevice));
  char* d = static_cast<char*>(c->dstMemoryType == CU_MEMORYTYPE_HOST ? c->dstHost : ptr(c->dstDevice));
  return put_node(out, x, deps, n,
                  copy2d_work(d + c->dstY * c->dstPitch + c->dstXInBytes, c->dstPitch,
                              s + c->srcY * c->srcPitch + c->srcXInBytes, c->srcPitch, c->WidthInBytes, c->Height));
}
CU_ENTRY(cuGraphAddMemsetNode, (out, x, deps, n, p, context), CUgraphNode* out, CUgraph x, const CUgraphNode* deps,
         size_t n, const CUDA_MEMSET_NODE_PARAMS* p, CUcontext context) {
  return put_node(out, x, deps, n, fill_work(ptr(p->dst), p->pitch, p->value, p->elementSize, p->width, p->height));
}
CU_ENTRY(cuGraphAddEventRecordNode, (out, x, deps, n, e), CUgraphNode* out, CUgraph x, const CUgraphNode* deps,
         size_t n, CUevent e) {
  EventP event = find_event(e);
  return event ? put_node(out, x, deps, n, record_work(event)) : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuGraphAddEventWaitNode, (out, x, deps, n, e), CUgraphNode* out, CUgraph x, const CUgraphNode* deps, size_t n,
         CUevent e) {
  EventP event = find_event(e);
  return event ? put_node(out, x, deps, n, wait_work(event)) : CUDA_ERROR_INVALID_HANDLE;
}
CU_ENTRY(cuGraphAddDependencies_v2, (x, from, to, edges, n), CUgraph x, const CUgraphNode* from, const CUgraphNode* to,
         const CUgraphEdgeData* edges, size_t n) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(big_lock());
  for (size_t i = 0; i < n; i++) {
    auto& d = as_node(to[i])->deps;
    if (std::find(d.begin(), d.end(), as_node(from[i])) == d.end()) d.push_back(as_node(from[i]));
  }
  return CUDA_SUCCESS;
}
CU_ENTRY(cuGraphAddDependencies, (x, from, to, n), CUgraph x, const CUgraphNode* from, const CUgraphNode* to,
         size_t n) {
  return api::cuGraphAddDependencies_v2(x, from, to, nullptr, n);
}

namespace standin::cuda::api {
namespace {
CUresult give(const std::vector<Node*>& v, CUgraphNode* out, size_t* n) {
  if (out) {
    size_t k = std::min(*n, v.size());
    for (size_t i = 0; i < k; i++) out[i] = handle(v[i]);
    for (size_t i = k; i < *n; i++) out[i] = nullptr;
    *n = k;
  } else {
    *n = v.size();
  }
  return CUDA_SUCCESS;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuGraphGetNodes, (x, out, n), CUgraph x, CUgraphNode* out, size_t* n) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> v;
  for (auto& y : as_graph(x)->nodes) v.push_back(y.get());
  return give(v, out, n);
}
CU_ENTRY(cuGraphGetRootNodes, (x, out, n), CUgraph x, CUgraphNode* out, size_t* n) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> v;
  for (auto& y : as_graph(x)->nodes)
    if (y->deps.empty()) v.push_back(y.get());
  return give(v, out, n);
}
CU_ENTRY(cuGraphNodeGetDependencies_v2, (n, out, edges, count), CUgraphNode n, CUgraphNode* out, CUgraphEdgeData* edges,
         size_t* count) {
  CUresult r = give(as_node(n)->deps, out, count);
  if (edges) memset(edges, 0, *count * sizeof *edges);
  return r;
}
CU_ENTRY(cuGraphNodeGetDependencies, (n, out, count), CUgraphNode n, CUgraphNode* out, size_t* count) {
  return give(as_node(n)->deps, out, count);
}
CU_ENTRY(cuGraphNodeGetType, (n, t), CUgraphNode n, CUgraphNodeType* t) {
  *t = as_node(n)->type();
  return CUDA_SUCCESS;
}
CU_ENTRY(cuGraphKernelNodeGetParams_v2, (n, p), CUgraphNode n, CUDA_KERNEL_NODE_PARAMS* p) {
  auto& c = as_node(n)->work->kernel;
  if (!c) return CUDA_ERROR_INVALID_VALUE;
  *p = {};
  p->func = reinterpret_cast<CUfunction>(c->kernel);
  p->gridDimX = c->grid.x;
  p->gridDimY = c->grid.y;
  p->gridDimZ = c->grid.z;
  p->blockDimX = c->block.x;
  p->blockDimY = c->block.y;
  p->blockDimZ = c->block.z;
  p->sharedMemBytes = c->shared;
  return CUDA_SUCCESS;
}
