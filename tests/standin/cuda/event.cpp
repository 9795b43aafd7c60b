// Events.
#include "core.hpp"

namespace standin::cuda {
namespace {
std::map<CUevent, EventP>& events() {
  static auto& m = *new std::map<CUevent, EventP>;
  return m;
}
}  // namespace

void Record::complete() {
  std::lock_guard lock(mu);
  done = true;
  time = now_seconds();
  cv.notify_all();
}
void Record::wait() {
  std::unique_lock lock(mu);
  cv.wait(lock, [&] { return done; });
}
RecordP Event::current() {
  std::lock_guard lock(mu);
  return record;
}
void Event::replace(const RecordP& r) {
  std::lock_guard lock(mu);
  record = r;
}

EventP new_event(unsigned flags) {
  std::lock_guard lock(big_lock());
  auto e = std::make_shared<Event>();
  e->flags = flags;
  e->dev = current() ? current()->dev : nullptr;
  events()[reinterpret_cast<CUevent>(e.get())] = e;
  return e;
}
EventP find_event(CUevent h) {
  std::lock_guard lock(big_lock());
  auto it = events().find(h);
  return it == events().end() ? nullptr : it->second;
}
CUresult drop_event(CUevent h) {
  std::lock_guard lock(big_lock());
  return events().erase(h) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

WorkP record_work(const EventP& e) {
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::EventRecord;
  w->event = e;
  w->run = [e](Stream*) {
    auto r = std::make_shared<Record>();
    r->complete();
    e->replace(r);
  };
  return w;
}
WorkP wait_work(const EventP& e) {
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::EventWait;
  w->event = e;
  w->run = [e](Stream*) {
    if (RecordP r = e->current()) r->wait();
  };
  return w;
}

CUresult event_record(const EventP& e, CUstream h, unsigned flags) {
  StreamP s;
  if (CUresult r = resolve(h, &s)) return r;
  std::lock_guard lock(big_lock());
  if (s->capture && !(flags & CU_EVENT_RECORD_EXTERNAL)) return event_record_captured(e, s);
  if (!s->capture && e->dev && e->dev != s->dev) return CUDA_ERROR_INVALID_HANDLE;
  e->capture.reset();
  if (s->capture) return submit(h, record_work(e));
  auto rec = std::make_shared<Record>();
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::EventRecord;
  w->run = [rec](Stream*) { rec->complete(); };
  if (CUresult r = submit(h, w)) return r;
  e->replace(rec);
  return CUDA_SUCCESS;
}

CUresult event_wait(CUstream h, const EventP& e, unsigned flags) {
  StreamP s;
  if (CUresult r = resolve(h, &s)) return r;
  std::lock_guard lock(big_lock());
  bool external = flags & CU_EVENT_WAIT_EXTERNAL;
  if (e->capture && !e->capture->ended && !external) return event_wait_captured(s, e);
  if (s->capture) {
    if (external) return submit(h, wait_work(e));
    invalidate(s->capture, "a wait for uncaptured work");
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  // The record of this moment: recording the event anew does not move work that waits already.
  RecordP rec = e->current();
  if (!rec) return CUDA_SUCCESS;
  auto w = std::make_shared<Work>();
  w->kind = WorkKind::EventWait;
  w->run = [rec](Stream*) { rec->wait(); };
  return submit(h, w);
}
}  // namespace standin::cuda
