// Entry points: graphs, executable graphs, user objects.
#include "entry.hpp"

CU_ENTRY(cuGraphCreate, (x, flags), CUgraph* x, unsigned int flags) {
  *x = reinterpret_cast<CUgraph>(new_graph());
  return CUDA_SUCCESS;
}
CU_ENTRY(cuGraphDestroy, (x), CUgraph x) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  drop_graph(as_graph(x));
  return CUDA_SUCCESS;
}
CU_ENTRY(cuGraphClone, (out, x), CUgraph* out, CUgraph x) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUgraph>(clone_graph(as_graph(x)));
  return CUDA_SUCCESS;
}
namespace standin::cuda::api {
namespace {
CUresult make_exec(CUgraphExec* e, CUgraph x) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  ExecP v = instantiate(as_graph(x));
  if (!v) return CUDA_ERROR_INVALID_VALUE;
  *e = reinterpret_cast<CUgraphExec>(v.get());
  trace("\"src\":\"cuda\",\"ev\":\"graph_instantiate\",\"graph\":\"%p\",\"exec\":\"%p\",\"nodes\":%zu",
        static_cast<void*>(x), static_cast<void*>(v.get()), v->graph->nodes.size());
  return CUDA_SUCCESS;
}
}  // namespace
}  // namespace standin::cuda::api

CU_ENTRY(cuGraphInstantiateWithFlags, (e, x, flags), CUgraphExec* e, CUgraph x, unsigned long long flags) {
  return make_exec(e, x);
}
CU_ENTRY(cuGraphInstantiateWithParams, (e, x, p), CUgraphExec* e, CUgraph x, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
  CUresult r = make_exec(e, x);
  if (p) p->result_out = r ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return r;
}
CU_ENTRY(cuGraphUpload, (exec, stream), CUgraphExec exec, CUstream stream) {
  return CUDA_SUCCESS;
}
CU_ENTRY(cuGraphLaunch, (x, s), CUgraphExec x, CUstream s) {
  TRY(need_init());
  ExecP e = find_exec(x);
  if (!e) return CUDA_ERROR_INVALID_VALUE;
  trace("\"src\":\"cuda\",\"ev\":\"graph_launch\",\"exec\":\"%p\",\"stream\":\"%p\"", static_cast<void*>(x),
        static_cast<void*>(s));
  std::lock_guard lock(big_lock());
  return submit(s, graph_work(e));
}
CU_ENTRY(cuGraphExecDestroy, (x), CUgraphExec x) {
  return drop_exec(x) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CU_ENTRY(cuGraphExecUpdate_v2, (x, from, info), CUgraphExec x, CUgraph from, CUgraphExecUpdateResultInfo* info) {
  ExecP e = find_exec(x);
  if (!e || !valid_graph(as_graph(from))) return CUDA_ERROR_INVALID_VALUE;
  bool updated = update_exec(*e, as_graph(from));
  if (info) {
    *info = {};
    info->result = updated ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  return updated ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

CU_ENTRY(cuUserObjectCreate, (out, p, destroy, refs, flags), CUuserObject* out, void* p, CUhostFn destroy,
         unsigned int refs, unsigned int flags) {
  *out = reinterpret_cast<CUuserObject>(new UserObject{p, destroy, static_cast<int>(refs)});
  return CUDA_SUCCESS;
}
CU_ENTRY(cuUserObjectRetain, (o, n), CUuserObject o, unsigned int n) {
  std::lock_guard lock(big_lock());
  reinterpret_cast<UserObject*>(o)->refs += static_cast<int>(n);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuUserObjectRelease, (o, n), CUuserObject o, unsigned int n) {
  object_release(reinterpret_cast<UserObject*>(o), static_cast<int>(n));
  return CUDA_SUCCESS;
}
CU_ENTRY(cuGraphRetainUserObject, (x, o, n, flags), CUgraph x, CUuserObject o, unsigned int n, unsigned int flags) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(big_lock());
  auto* u = reinterpret_cast<UserObject*>(o);
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) u->refs += static_cast<int>(n);
  as_graph(x)->objects[u] += static_cast<int>(n);
  return CUDA_SUCCESS;
}
CU_ENTRY(cuGraphReleaseUserObject, (x, o, n), CUgraph x, CUuserObject o, unsigned int n) {
  if (!valid_graph(as_graph(x))) return CUDA_ERROR_INVALID_VALUE;
  auto* u = reinterpret_cast<UserObject*>(o);
  {
    std::lock_guard lock(big_lock());
    auto& m = as_graph(x)->objects;
    if ((m[u] -= static_cast<int>(n)) <= 0) m.erase(u);
  }
  object_release(u, static_cast<int>(n));
  return CUDA_SUCCESS;
}
