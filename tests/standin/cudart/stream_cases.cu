// Test cases: order of streams, events, host functions, stream capture, graphs.
#include "case_support.cuh"

namespace standin::cudart::cases {

std::string events_order_streams() {
  Array out(1);
  Stream first, second;
  Event before, after;
  Gate gate;
  NEED_OK(cudaEventRecord(before, first));
  NEED_OK(cudaLaunchHostFunc(first, Gate::wait, &gate));
  twice_plus<<<1, 1, 0, first>>>(out.data(), 1);
  NEED_OK(cudaEventRecord(after, first));
  NEED_OK(cudaStreamWaitEvent(second, after, 0));
  twice_plus<<<1, 1, 0, second>>>(out.data(), 5);
  NEED(cudaStreamQuery(second) == cudaErrorNotReady);
  NEED(cudaEventQuery(after) == cudaErrorNotReady);
  gate.open = true;
  NEED_OK(cudaStreamSynchronize(second));
  NEED_OK(cudaEventQuery(after));
  NEED(out.first() == (0 * 2 + 1) * 2 + 5);
  float milliseconds = -1;
  NEED_OK(cudaEventElapsedTime(&milliseconds, before, after));
  NEED(milliseconds >= 0);
  return "";
}

std::string host_functions_wait_their_turn() {
  Stream stream;
  Array out(1);
  struct Look {
    int* on_device;
    std::atomic<int> seen{-1};
  } look{out.data()};
  int* pinned = nullptr;
  NEED_OK(cudaMallocHost(&pinned, sizeof(int)));
  *pinned = 0;
  add_to<<<1, 32, 0, stream>>>(pinned, 2);
  look.on_device = pinned;
  NEED_OK(cudaLaunchHostFunc(
      stream,
      [](void* user) {
        auto* l = static_cast<Look*>(user);
        l->seen = *l->on_device;
      },
      &look));
  add_to<<<1, 1, 0, stream>>>(pinned, 1);
  NEED_OK(cudaStreamSynchronize(stream));
  NEED(look.seen == 64);
  NEED(*pinned == 65);
  NEED_OK(cudaFreeHost(pinned));
  return "";
}

std::string captured_work_runs_at_each_graph_launch() {
  Array out(1);
  Stream main, side;
  Event fork, join;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  NEED_OK(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal));
  twice_plus<<<1, 1, 0, main>>>(out.data(), 1);
  NEED_OK(cudaEventRecord(fork, main));
  NEED_OK(cudaStreamWaitEvent(side, fork, 0));
  twice_plus<<<1, 1, 0, side>>>(out.data(), 3);
  NEED_OK(cudaEventRecord(join, side));
  NEED_OK(cudaStreamWaitEvent(main, join, 0));
  cudaStreamCaptureStatus status;
  NEED_OK(cudaStreamIsCapturing(side, &status));
  NEED(status == cudaStreamCaptureStatusActive);
  NEED_OK(cudaStreamEndCapture(main, &graph));
  size_t nodes = 0;
  NEED_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  NEED(nodes == 2);
  NEED(out.first() == 0);  // nothing ran so far
  NEED_OK(cudaGraphInstantiate(&exec, graph, 0));
  NEED_OK(cudaGraphDestroy(graph));
  int expected = 0;
  for (int i = 0; i < 3; i++) {
    NEED_OK(cudaGraphLaunch(exec, main));
    expected = (expected * 2 + 1) * 2 + 3;
  }
  NEED_OK(cudaStreamSynchronize(main));
  NEED(out.first() == expected);
  NEED_OK(cudaGraphExecDestroy(exec));
  return "";
}

// As NCCL does in captures: it adds a node, for which the stream's next work then waits.
std::string capture_takes_dependencies_from_outside() {
  Array out(1);
  Stream stream;
  static std::atomic<int> called;
  called = 0;
  NEED_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  twice_plus<<<1, 1, 0, stream>>>(out.data(), 1);
  cudaStreamCaptureStatus status;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* tail = nullptr;
  size_t count = 0;
  NEED_OK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &tail, nullptr, &count));
  NEED(status == cudaStreamCaptureStatusActive && id != 0 && graph && count == 1);
  cudaHostNodeParams host = {[](void*) { called++; }, nullptr};
  cudaGraphNode_t own = nullptr;
  NEED_OK(cudaGraphAddHostNode(&own, graph, tail, count, &host));
  NEED_OK(cudaStreamUpdateCaptureDependencies(stream, &own, nullptr, 1, cudaStreamSetCaptureDependencies));
  NEED_OK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &tail, nullptr, &count));
  NEED(count == 1 && tail[0] == own);
  twice_plus<<<1, 1, 0, stream>>>(out.data(), 3);
  cudaGraph_t ended = nullptr;
  NEED_OK(cudaStreamEndCapture(stream, &ended));
  NEED(ended == graph);
  cudaGraphExec_t exec = nullptr;
  NEED_OK(cudaGraphInstantiate(&exec, graph, 0));
  NEED_OK(cudaGraphLaunch(exec, stream));
  NEED_OK(cudaStreamSynchronize(stream));
  NEED(called == 1);
  NEED(out.first() == (0 * 2 + 1) * 2 + 3);
  NEED_OK(cudaGraphExecDestroy(exec));
  NEED_OK(cudaGraphDestroy(graph));
  return "";
}

std::string graph_of_nodes_made_by_hand() {
  Array out(1);
  Stream stream;
  Event event;
  cudaGraph_t graph = nullptr;
  NEED_OK(cudaGraphCreate(&graph, 0));
  int* p = out.data();
  int one = 1, three = 3;
  void *first_arguments[] = {&p, &one}, *second_arguments[] = {&p, &three};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(twice_plus);
  params.gridDim = params.blockDim = {1, 1, 1};
  params.kernelParams = first_arguments;
  cudaGraphNode_t first, second, record;
  NEED_OK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &params));
  params.kernelParams = second_arguments;
  NEED_OK(cudaGraphAddKernelNode(&second, graph, nullptr, 0, &params));
  NEED_OK(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1));
  NEED_OK(cudaGraphAddEventRecordNode(&record, graph, &second, 1, event));
  cudaGraphExec_t exec = nullptr;
  NEED_OK(cudaGraphInstantiate(&exec, graph, 0));
  NEED_OK(cudaGraphLaunch(exec, stream));
  NEED_OK(cudaStreamSynchronize(stream));
  NEED_OK(cudaEventQuery(event));
  NEED(out.first() == (0 * 2 + 1) * 2 + 3);
  cudaGraphNodeType type;
  NEED_OK(cudaGraphNodeGetType(record, &type));
  NEED(type == cudaGraphNodeTypeEventRecord);
  // A cycle can't be instantiated.
  NEED_OK(cudaGraphAddDependencies(graph, &record, &first, nullptr, 1));
  cudaGraphExec_t none = nullptr;
  NEED(cudaGraphInstantiate(&none, graph, 0) != cudaSuccess);
  cudaGetLastError();
  NEED_OK(cudaGraphExecDestroy(exec));
  NEED_OK(cudaGraphDestroy(graph));
  return "";
}

std::string user_object_ends_with_its_graph() {
  static std::atomic<int> ended;
  ended = 0;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaUserObject_t object = nullptr;
  cudaGraphNode_t node;
  NEED_OK(cudaGraphCreate(&graph, 0));
  NEED_OK(cudaUserObjectCreate(
      &object, nullptr, [](void*) { ended++; }, 1, cudaUserObjectNoDestructorSync));
  NEED_OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  NEED_OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
  NEED_OK(cudaGraphInstantiate(&exec, graph, 0));
  NEED_OK(cudaGraphDestroy(graph));
  NEED(ended == 0);  // the executable graph holds it
  NEED_OK(cudaGraphExecDestroy(exec));
  for (int i = 0; i < 2000 && ended == 0; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  NEED(ended == 1);
  return "";
}
}  // namespace standin::cudart::cases
