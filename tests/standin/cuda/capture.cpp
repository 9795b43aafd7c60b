// Stream capture: what a capturing stream collects, what capture forbids, how it ends.
#include <algorithm>
#include <cstdio>

#include "core.hpp"

namespace standin::cuda {
namespace {
std::vector<CaptureP>& captures() {
  static auto& v = *new std::vector<CaptureP>;
  return v;
}
thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
}  // namespace

CUstreamCaptureMode& thread_capture_mode() {
  return t_mode;
}

void invalidate(const CaptureP& c, const char* why) {
  c->invalid = true;
  trace("\"src\":\"cuda\",\"ev\":\"capture_invalidated\",\"why\":\"%s\"", why);
  if (config().verbose) fprintf(stderr, "standin cuda: capture invalidated by %s\n", why);
}

CUresult unsafe_call() {
  if (t_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard lock(big_lock());
  for (auto& c : captures()) {
    if (c->ended) continue;
    bool mine = c->owner == std::this_thread::get_id() && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool global = t_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (mine || global) {
      invalidate(c, "a call that is unsafe during capture");
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return CUDA_SUCCESS;
}

CUresult legacy_work_allowed(const StreamP& legacy) {
  for (auto& c : captures())
    if (!c->ended && c->origin && c->origin->dev == legacy->dev && !(c->origin->flags & CU_STREAM_NON_BLOCKING) &&
        c->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
      invalidate(c, "work for the legacy stream");
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  return CUDA_SUCCESS;
}

void capture_orphaned(Stream* s) {
  if (s->capture && !s->capture->ended && s->capture->origin == s)
    invalidate(s->capture, "a capturing stream destroyed");
}

CUresult begin_capture(CUstream h, CUstreamCaptureMode mode) {
  static std::atomic<uint64_t> next{1};
  StreamP s;
  if (CUresult r = resolve(h, &s)) return r;
  if (s->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(big_lock());
  if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto c = std::make_shared<Capture>();
  c->id = next++;
  c->graph = new_graph();
  c->mode = mode;
  c->owner = std::this_thread::get_id();
  c->origin = s.get();
  c->joined.push_back(s.get());
  s->capture = c;
  s->capture_set.clear();
  captures().push_back(c);
  return CUDA_SUCCESS;
}

CUresult end_capture(CUstream h, Graph** out) {
  StreamP s;
  *out = nullptr;
  if (CUresult r = resolve(h, &s)) return r;
  std::unique_lock lock(big_lock());
  CaptureP c = s->capture;
  if (!c) return CUDA_ERROR_ILLEGAL_STATE;
  if (c->origin != s.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (c->owner != std::this_thread::get_id() && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  // What forked streams captured must be reachable from the origin's last nodes; nodes that graph calls put there
  // need not.
  bool unjoined = false;
  std::set<Node*> seen;
  std::vector<Node*> todo = s->capture_set;
  while (!todo.empty()) {
    Node* n = todo.back();
    todo.pop_back();
    if (!seen.insert(n).second) continue;
    todo.insert(todo.end(), n->deps.begin(), n->deps.end());
  }
  for (Stream* o : c->joined)
    if (stream_alive(o) && o->capture == c) {
      for (Node* n : o->capture_set)
        if (n->captured && !seen.count(n)) unjoined = true;
      o->capture.reset();
      o->capture_set.clear();
    }
  c->ended = true;
  auto& v = captures();
  v.erase(std::remove(v.begin(), v.end(), c), v.end());
  if (c->invalid || unjoined) {
    lock.unlock();
    drop_graph(c->graph);
    return c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  *out = c->graph;
  return CUDA_SUCCESS;
}

CUresult event_record_captured(const EventP& e, const StreamP& s) {
  if (s->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  e->capture = s->capture;
  e->capture_set = s->capture_set;
  return CUDA_SUCCESS;
}

CUresult event_wait_captured(const StreamP& s, const EventP& e) {
  if (s->capture && s->capture != e->capture) {
    invalidate(s->capture, "a merge of two captures");
    invalidate(e->capture, "a merge of two captures");
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (s->legacy) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (!s->capture) {
    s->capture = e->capture;
    s->capture_set.clear();
    s->capture->joined.push_back(s.get());
  }
  for (Node* n : e->capture_set)
    if (std::find(s->capture_set.begin(), s->capture_set.end(), n) == s->capture_set.end()) s->capture_set.push_back(n);
  return CUDA_SUCCESS;
}
}  // namespace standin::cuda
