#include "preload/group.hpp"

#include <exception>
#include <utility>

#include "kernels/abi.hpp"
#include "preload/unfinished.hpp"

namespace gradprobe::preload {
namespace {

constinit thread_local int t_depth = 0;
constinit thread_local int t_inside = 0;
constinit thread_local bool t_over = false;  // the thread ends: its group has been destroyed

// Grows to the size of the thread's largest group and keeps its memory: no allocation in the groups that follow.
struct Group {
  std::vector<Call> calls;
  std::vector<bool> begun;  // by call
  std::vector<KnownCall> run;
  std::vector<Pass> passes;
  std::vector<Making> makings;
  std::vector<void*> ended;  // contexts
  bool failed = false;

  Group() = default;
  ~Group() { t_over = true; }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void clear() {
    calls.clear();
    begun.clear();
    passes.clear();
    makings.clear();
    ended.clear();
    failed = false;
  }
};
thread_local Group t_group;

// The passes of one communicator, whose first call in the group is number `first`: one for each run of calls on one
// stream, so that collectives keep the order of the calls, which is equal on all ranks, and inputs that of their
// streams.
void begin_communicator(Group* group, std::size_t first) {
  const Call& head = group->calls[first];
  void* stream = head.stream;
  const auto flush = [&] {
    if (!group->run.empty()) group->passes.push_back(begin(head.comm, stream, group->run));
    group->run.clear();
  };
  for (std::size_t i = first; i < group->calls.size(); i++) {
    const Call& call = group->calls[i];
    if (call.comm != head.comm) continue;
    group->begun[i] = true;
    if (call.stream != stream || group->run.size() == gate::kMaxEntries) flush();
    stream = call.stream;
    group->run.push_back(call.what);
  }
  flush();
}

}  // namespace

bool inside_nccl() {
  return t_inside > 0;
}
InsideNccl::InsideNccl() {
  t_inside++;
}
InsideNccl::~InsideNccl() {
  t_inside--;
}

int group_depth() {
  return t_depth;
}
void group_entered() {
  t_depth++;
}
bool group_left() {
  return t_depth > 0 && --t_depth == 0;
}

void group_add(const Call& call) noexcept {
  if (t_over) return;
  try {
    t_group.calls.push_back(call);
  } catch (const std::exception&) {
    t_group.failed = true;
  }
}

void group_failed() noexcept {
  if (!t_over) t_group.failed = true;
}

void group_add(const Making& making) noexcept {
  if (t_over) return;
  try {
    t_group.makings.push_back(making);
  } catch (const std::exception&) {
    // Its collectives will be on a communicator that isn't known: not measured.
  }
}

void group_add_ended(void* context) noexcept {
  if (context == nullptr || t_over) return;
  try {
    t_group.ended.push_back(context);
  } catch (const std::exception&) {
    comm_ended(context);
  }
}

void group_begin() noexcept {
  if (t_over) return;
  Group& group = t_group;
  try {
    if (group.failed) group.calls.clear();
    // Places for all passes, so that none of those launched can get lost.
    group.begun.assign(group.calls.size(), false);
    group.run.reserve(group.calls.size());
    group.passes.reserve(group.calls.size());
    for (std::size_t i = 0; i < group.calls.size(); i++)
      if (!group.begun[i]) begin_communicator(&group, i);
  } catch (const std::exception&) {
    // No memory: what has no pass is not measured.
  }
}

void group_end(int result) noexcept {
  if (t_over) return;
  Group& group = t_group;
  for (const Pass& pass : group.passes) end(pass, result);
  if (result == nccl::kSuccess || result == nccl::kInProgress) {
    for (const Making& making : group.makings) {
      const nccl::Comm* comm = making.where != nullptr ? *making.where : making.comm;
      if (comm == nullptr && making.parent != nullptr && returns_early(making.parent))
        unfinished_add(making.parent, making.where, making.identity);
      else
        comm_made(comm, making.identity, result == nccl::kSuccess);
    }
  }
  for (void* context : group.ended) comm_ended(context);
  group.clear();
}

void group_drop() noexcept {
  if (t_over) return;
  for (void* context : t_group.ended) comm_ended(context);
  t_group.clear();
}

}  // namespace gradprobe::preload
