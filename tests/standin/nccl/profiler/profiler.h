// The process's profiler plugin and the calls made to it, by the real library's rules: which file and struct are
// loaded, which events the mask asks for, which handle is whose parent.
#pragma once
#include <cuda.h>

#include <vector>

#include "../include/nccl.h"
#include "descriptor.h"

namespace standin {

struct Settings;
struct Plan;
struct Task;

namespace profiler {

// init and finalize of one communicator. init loads the plugin when the process has none; a failed load is remembered.
void init(ncclComm* comm);
void finalize(ncclComm* comm);

// Calls of one thread between its ncclGroupStart and ncclGroupEnd.
struct ApiState {
  int group_depth = 0;
  int mask = 0;
  void* group_api = nullptr;
  void* coll_api = nullptr;
  void* p2p_api = nullptr;
  enum { kReset, kStarted, kStartStopped } phase = kReset;
};
ApiState& api_state();

void start_group_api(ncclComm* comm, bool captured, int depth);
void stop_group_api();
void record_group_api(EventState state);
// CollApi or P2pApi around the making of one task; fills the task's handles and mask.
void start_task_api(ncclComm* comm, Task* task, bool captured);
void stop_task_api(const Task& task);

void start_kernel_launch(Plan* plan, CUstream stream);
void stop_kernel_launch(Plan* plan);
// CeColl with all that happens within it, and its end.
void start_copy_engine(Plan* plan, CUstream stream);
void stop_copy_engine(Plan* plan);
void start_group(Plan* plan);
void start_tasks(Plan* plan);
void stop_tasks(Plan* plan);
void stop_group(Plan* plan);

}  // namespace profiler
}  // namespace standin
