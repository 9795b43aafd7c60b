// Kernel launches and host functions.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core.hpp"

namespace standin::cuda {
namespace {
std::atomic<uint64_t> g_launch{1};

CUresult pack_extra(const Kernel& k, void** extra, std::vector<char>* out) {
  const void* buf = nullptr;
  size_t size = 0;
  for (void** e = extra; *e != CU_LAUNCH_PARAM_END; e += 2) {
    if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buf = e[1];
    else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE)
      size = *static_cast<size_t*>(e[1]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  size = std::min(size, k.info.param_bytes);
  if (size) memcpy(out->data(), buf, size);
  return CUDA_SUCCESS;
}
CUresult pack_params(const Kernel& k, void** params, void** extra, std::vector<char>* out) {
  out->assign(k.info.param_bytes, 0);
  if (extra) return pack_extra(k, extra, out);
  if (k.info.params.empty()) return CUDA_SUCCESS;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < k.info.params.size(); i++) {
    auto& p = k.info.params[i];
    if (!params[i]) return CUDA_ERROR_INVALID_VALUE;
    memcpy(out->data() + p.offset, params[i], p.size);
  }
  return CUDA_SUCCESS;
}

// Empty string, or the fault.
std::string execute(const KernelCall& call) {
  if (call.native) {
    call.native();
    return "";
  }
  ptx::Program* p;
  {
    std::lock_guard lock(call.module->mu);
    p = call.module->program(call.dev->physical, nullptr);
  }
  ptx::Launch l{{call.grid.x, call.grid.y, call.grid.z},
                {call.block.x, call.block.y, call.block.z},
                call.shared,
                call.params.data(),
                call.params.size()};
  ptx::Stats stats;
  double start = now_seconds();
  std::string why = ptx::launch(*p, call.kernel->name, l, &stats);
  if (config().verbose)
    fprintf(stderr, "standin cuda: [%d] %s grid %u block %u: %.3f s, %lu thread instructions\n", call.dev->ordinal,
            call.kernel->name.c_str(), call.grid.x, call.block.x, now_seconds() - start,
            static_cast<unsigned long>(stats.thread_instructions));
  return why;
}

void trace_run(const char* ev, const KernelCall& call, const Stream* s, const std::string& fault) {
  if (!tracing()) return;
  trace("\"src\":\"cuda\",\"ev\":\"%s\",\"launch\":%lu,\"kernel\":\"%s\",\"stream\":\"%p\",\"dev\":%d%s%s%s", ev,
        static_cast<unsigned long>(call.launch_id), call.kernel->name.c_str(), static_cast<void*>(s->handle),
        call.dev->ordinal, fault.empty() ? "" : ",\"fault\":\"", json_escape(fault).c_str(), fault.empty() ? "" : "\"");
}

// Traces a call and puts it on its stream.
CUresult put_call(const LaunchRequest& r, const std::shared_ptr<KernelCall>& call, const StreamP& s) {
  if (tracing()) {
    std::string attrs;
    for (unsigned i = 0; i < r.nattrs; i++) attrs += (i ? "," : "") + std::to_string(static_cast<int>(r.attrs[i].id));
    trace(
        "\"src\":\"cuda\",\"ev\":\"launch\",\"api\":\"%s\",\"launch\":%lu,\"kernel\":\"%s\",\"stream\":\"%p\",\"dev\":%"
        "d,"
        "\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared\":%u,\"param_bytes\":%zu,\"attrs\":[%s],\"capturing\":%s",
        r.api, static_cast<unsigned long>(call->launch_id), call->kernel->name.c_str(), static_cast<void*>(r.stream),
        s->dev->ordinal, call->grid.x, call->grid.y, call->grid.z, call->block.x, call->block.y, call->block.z,
        call->shared, call->params.size(), attrs.c_str(), s->capture ? "true" : "false");
  }
  bool captured = false;
  uint64_t ticket = 0;
  CUresult result = submit(r.stream, kernel_work(call), &captured, &ticket);
  if (result == CUDA_SUCCESS && !captured && config().launch_blocking) wait_ticket(s, ticket);
  return result;
}
}  // namespace

WorkP kernel_work(const std::shared_ptr<KernelCall>& call) {
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::Kernel;
  w->kernel = call;
  w->run = [call](Stream* s) {
    for (auto& r : call->on_start) r->complete();
    trace_run("kernel_begin", *call, s, "");
    std::string why;
    if (!call->dev->fault) why = execute(*call);
    if (!why.empty()) {
      fprintf(stderr, "standin cuda: kernel %s failed on device %d: %s\n", call->kernel->name.c_str(),
              call->dev->ordinal, why.c_str());
      call->dev->fault = CUDA_ERROR_LAUNCH_FAILED;
    }
    trace_run("kernel_end", *call, s, why);
  };
  return w;
}

CUresult make_call(Kernel* k, const LaunchRequest& r, Device* d, std::shared_ptr<KernelCall>* out) {
  if (!k->module) return CUDA_ERROR_INVALID_HANDLE;
  for (const Dim3* x : {&r.grid, &r.block})
    if (!x->x || !x->y || !x->z) return CUDA_ERROR_INVALID_VALUE;
  if (static_cast<uint64_t>(r.block.x) * r.block.y * r.block.z > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (static_cast<int>(r.shared) > k->max_dynamic_shared) return CUDA_ERROR_INVALID_VALUE;
  auto call = std::make_shared<KernelCall>();
  call->kernel = k;
  call->module = find_module(k->module);
  call->grid = r.grid;
  call->block = r.block;
  call->shared = r.shared;
  call->dev = d;
  call->launch_id = g_launch++;
  if (CUresult e = pack_params(*k, r.params, r.extra, &call->params)) return e;
  *out = std::move(call);
  return CUDA_SUCCESS;
}

CUresult launch_kernel(Kernel* k, const LaunchRequest& r) {
  StreamP s;
  if (CUresult e = resolve(r.stream, &s)) return e;
  std::shared_ptr<KernelCall> call;
  if (CUresult e = make_call(k, r, s->dev, &call)) return e;
  EventP started;
  for (unsigned i = 0; i < r.nattrs; i++)
    if (r.attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      started = find_event(r.attrs[i].value.launchCompletionEvent.event);
      if (!started) return CUDA_ERROR_INVALID_HANDLE;
    }
  if (started && !s->capture) {
    auto rec = std::make_shared<Record>();
    call->on_start.push_back(rec);
    started->capture.reset();
    started->replace(rec);
  }
  CUresult result = put_call(r, call, s);
  if (started && s->capture && result == CUDA_SUCCESS) {
    started->capture = s->capture;
    started->capture_set = s->capture_set;
  }
  return result;
}

CUresult launch_native(CUstream h, const char* name, std::function<void()> body) {
  StreamP s;
  if (CUresult r = resolve(h, &s)) return r;
  auto call = std::make_shared<KernelCall>();
  call->kernel = native_kernel(name);
  call->native = std::move(body);
  call->dev = s->dev;
  call->launch_id = g_launch++;
  LaunchRequest request{.api = "cuLaunchKernelEx", .grid = {}, .block = {}, .stream = h};
  return put_call(request, call, s);
}

WorkP host_work(CUhostFn fn, void* user, const char* api) {
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::Host;
  w->fn = fn;
  w->user = user;
  w->run = [fn, user, a = std::string(api)](Stream* s) {
    auto note = [&](const char* ev) {
      trace("\"src\":\"cuda\",\"ev\":\"%s\",\"api\":\"%s\",\"fn\":\"%p\",\"stream\":\"%p\"", ev, a.c_str(),
            reinterpret_cast<void*>(fn), static_cast<void*>(s->handle));
    };
    note("host_begin");
    fn(user);
    note("host_end");
  };
  return w;
}
}  // namespace standin::cuda
