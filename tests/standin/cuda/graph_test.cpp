// Stream capture, graphs and their replay, user objects, native launches.
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "native.h"
#include "test_support.hpp"

namespace standin::cuda::test {
namespace {

void count(void* p) {
  ++*static_cast<std::atomic<int>*>(p);
}

TEST_F(Driver, CaptureForksJoinsAndReplays) {
  CUstream other;
  CUevent fork_event, join_event;
  CU_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CU_OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
  CU_OK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
  CUdeviceptr p = device_zeros(4), q = device_zeros(4);
  std::atomic<int> calls{0}, destroyed{0};
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_OK(launch("add", stream, 1, p, 1));
  CU_OK(cuEventRecord(fork_event, stream));
  CU_OK(cuStreamWaitEvent(other, fork_event, 0));
  CU_OK(launch("add", other, 2, q, 1));
  CU_OK(cuLaunchHostFunc(other, count, &calls));
  CU_OK(cuEventRecord(join_event, other));
  CU_OK(launch("add", stream, 1, p, 1));
  CU_OK(cuStreamWaitEvent(stream, join_event, 0));
  CU_OK(launch("twice_plus", stream, 1, q, 0));
  CUstreamCaptureStatus status;
  CU_OK(cuStreamIsCapturing(other, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph inside = nullptr;
  cuuint64_t id_here = 0, id_there = 0;
  const CUgraphNode* dependencies;
  size_t n = 0;
  CU_OK(cuStreamGetCaptureInfo(stream, &status, &id_here, &inside, &dependencies, nullptr, &n));
  CU_OK(cuStreamGetCaptureInfo(other, &status, &id_there, nullptr, nullptr, nullptr, nullptr));
  EXPECT_EQ(n, 1u);
  EXPECT_EQ(id_here, id_there);
  CUuserObject object;
  CU_OK(cuUserObjectCreate(&object, &destroyed, count, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CU_OK(cuGraphRetainUserObject(inside, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CUgraph graph;
  CU_OK(cuStreamEndCapture(stream, &graph));
  EXPECT_EQ(graph, inside);
  EXPECT_EQ(read<int>(p), 0) << "capture runs nothing";
  CU_OK(cuGraphGetNodes(graph, nullptr, &n));
  EXPECT_EQ(n, 5u);
  CUgraphExec exec;
  CU_OK(cuGraphInstantiate(&exec, graph, 0));
  CU_OK(cuGraphDestroy(graph));
  for (int i = 0; i < 3; i++) CU_OK(cuGraphLaunch(exec, stream));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read<int>(p), 6);
  EXPECT_EQ(read<int>(q), ((2 * 2 + 2) * 2 + 2) * 2);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(destroyed, 0);
  CU_OK(cuGraphExecDestroy(exec));
  EXPECT_EQ(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(eventually([&] { return destroyed == 1; }));
  CU_OK(cuEventDestroy(fork_event));
  CU_OK(cuEventDestroy(join_event));
  CU_OK(cuStreamDestroy(other));
  CU_OK(cuMemFree(p));
  CU_OK(cuMemFree(q));
}

TEST_F(Driver, UserObjectsLiveAsLongAsGraphsOfThem) {
  std::atomic<int> destroyed{0};
  CUuserObject object;
  CU_OK(cuUserObjectCreate(&object, &destroyed, count, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  CUgraph graph, copy;
  CU_OK(cuGraphCreate(&graph, 0));
  CU_OK(cuGraphRetainUserObject(graph, object, 1, 0));
  CU_OK(cuGraphClone(&copy, graph));
  CU_OK(cuUserObjectRelease(object, 2));
  CU_OK(cuGraphDestroy(graph));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(destroyed, 0);
  CU_OK(cuGraphDestroy(copy));
  EXPECT_TRUE(eventually([&] { return destroyed == 1; }));
}

TEST_F(Driver, CaptureForbidsWhatTheDocumentationForbids) {
  CUgraph graph;
  CUdeviceptr p = device_zeros(4), none;
  CUstreamCaptureStatus status;
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuMemAlloc(&none, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CU_OK(cuStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // a relaxed thread may allocate
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_OK(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CU_OK(cuMemAlloc(&none, 4));
  CU_OK(cuThreadExchangeStreamCaptureMode(&mode));
  CU_OK(cuStreamEndCapture(stream, &graph));
  CU_OK(cuGraphDestroy(graph));
  CU_OK(cuMemFree(none));
  // a fork without its join
  CUstream other;
  CUevent event;
  CU_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CU_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU_OK(cuEventRecord(event, stream));
  CU_OK(cuStreamWaitEvent(other, event, 0));
  CU_OK(launch("add", other, 1, p, 1));
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CU_OK(cuEventRecord(event, stream));
  CU_OK(cuStreamWaitEvent(other, event, 0));
  CU_OK(launch("add", other, 1, p, 1));
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph, nullptr);
  // synchronizing what is being captured
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CU_OK(cuEventDestroy(event));
  CU_OK(cuStreamDestroy(other));
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, GraphsBuiltByHandAndUpdated) {
  CUdeviceptr p = device_zeros(16);
  CUgraph graph;
  CU_OK(cuGraphCreate(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS fill = {};
  fill.dst = p;
  fill.value = 3;
  fill.elementSize = 4;
  fill.width = 1;
  fill.height = 1;
  int n = 4;
  void* params[] = {&p, &n};
  CUDA_KERNEL_NODE_PARAMS call = {};
  call.func = kernel("twice_plus");
  call.gridDimX = call.gridDimY = call.gridDimZ = call.blockDimX = call.blockDimY = call.blockDimZ = 1;
  call.kernelParams = params;
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = p;
  copy.dstDevice = p + 8;
  copy.WidthInBytes = 4;
  copy.Height = copy.Depth = 1;
  CUgraphNode a, b, c, empty;
  CU_OK(cuGraphAddMemsetNode(&a, graph, nullptr, 0, &fill, context));
  CU_OK(cuGraphAddKernelNode(&b, graph, &a, 1, &call));
  CU_OK(cuGraphAddEmptyNode(&empty, graph, &b, 1));
  CU_OK(cuGraphAddMemcpyNode(&c, graph, &empty, 1, &copy, context));
  CUgraphNodeType type;
  CU_OK(cuGraphNodeGetType(b, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
  CUgraphExec exec;
  CU_OK(cuGraphInstantiate(&exec, graph, 0));
  CU_OK(cuGraphLaunch(exec, stream));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read<int>(p + 8), 10);
  // the same shape with another parameter
  CUgraph changed;
  CU_OK(cuGraphCreate(&changed, 0));
  n = 5;
  CU_OK(cuGraphAddMemsetNode(&a, changed, nullptr, 0, &fill, context));
  CU_OK(cuGraphAddKernelNode(&b, changed, &a, 1, &call));
  CUgraphExecUpdateResultInfo info;
  EXPECT_EQ(cuGraphExecUpdate(exec, changed, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  CU_OK(cuGraphAddEmptyNode(&empty, changed, &b, 1));
  CU_OK(cuGraphAddMemcpyNode(&c, changed, &empty, 1, &copy, context));
  CU_OK(cuGraphExecUpdate(exec, changed, &info));
  CU_OK(cuGraphLaunch(exec, stream));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(read<int>(p + 8), 11);
  // a cycle can't be instantiated
  CU_OK(cuGraphAddDependencies(changed, &c, &a, nullptr, 1));
  CUgraphExec never;
  EXPECT_EQ(cuGraphInstantiate(&never, changed, 0), CUDA_ERROR_INVALID_VALUE);
  CU_OK(cuGraphExecDestroy(exec));
  CU_OK(cuGraphDestroy(graph));
  CU_OK(cuGraphDestroy(changed));
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, LaunchesOfAnExecutableRunInTheirOrder) {
  CUstream other;
  CU_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUdeviceptr p = device_zeros(4);
  CUgraph graph;
  CUgraphExec exec;
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_OK(launch("add", stream, 1, p, 1));
  CU_OK(cuStreamEndCapture(stream, &graph));
  CU_OK(cuGraphInstantiate(&exec, graph, 0));
  std::atomic<bool> open{false};
  auto hold = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  CU_OK(cuLaunchHostFunc(stream, hold, &open));
  CU_OK(cuGraphLaunch(exec, stream));
  CU_OK(cuGraphLaunch(exec, other));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(cuStreamQuery(other), CUDA_ERROR_NOT_READY) << "overtook the first launch";
  open = true;
  CU_OK(cuStreamSynchronize(other));
  CU_OK(cuStreamSynchronize(stream));
  CU_OK(cuGraphExecDestroy(exec));
  CU_OK(cuGraphDestroy(graph));
  CU_OK(cuStreamDestroy(other));
}

TEST_F(Driver, DependenciesCanBeSetDuringCapture) {
  CUdeviceptr p = device_zeros(4);
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_OK(launch("add", stream, 1, p, 1));
  CUstreamCaptureStatus status;
  CUgraph graph;
  CU_OK(cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
  std::atomic<int> calls{0};
  CUDA_HOST_NODE_PARAMS host = {};
  host.fn = count;
  host.userData = &calls;
  CUgraphNode node;
  CU_OK(cuGraphAddHostNode(&node, graph, nullptr, 0, &host));
  CU_OK(cuStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
  CU_OK(launch("add", stream, 1, p, 1));
  const CUgraphNode* last;
  size_t n = 0;
  CU_OK(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &last, nullptr, &n));
  ASSERT_EQ(n, 1u);
  CUgraphNode above[4];
  size_t count_above = 4;
  CU_OK(cuGraphNodeGetDependencies(*last, above, nullptr, &count_above));
  EXPECT_EQ(count_above, 2u);
  CU_OK(cuStreamEndCapture(stream, &graph));
  CU_OK(cuGraphDestroy(graph));
  CU_OK(cuMemFree(p));
}

// What a native launch tells about itself.
struct Native {
  std::atomic<int> runs{0}, destroyed{0};
  std::thread::id ran_on;
  Gate gate;
  static void body(void* p) {
    auto* n = static_cast<Native*>(p);
    Gate::wait(&n->gate);
    n->ran_on = std::this_thread::get_id();
    n->runs++;
  }
  static void destroy(void* p) { static_cast<Native*>(p)->destroyed++; }
};

TEST_F(Driver, NativeLaunchRunsOnTheStreamsThread) {
  Native n;
  CUdeviceptr p = device_zeros(4);
  CU_OK(standin_cuda_launch_native(stream, "some_kernel", Native::body, &n, Native::destroy));
  CU_OK(launch("add", stream, 1, p, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(n.runs, 0);
  EXPECT_EQ(n.destroyed, 0);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  n.gate.open = true;
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(n.runs, 1);
  EXPECT_EQ(n.destroyed, 1) << "gone when the stream has passed it";
  EXPECT_NE(n.ran_on, std::this_thread::get_id());
  EXPECT_EQ(read<int>(p), 1);
  CU_OK(cuMemFree(p));
}

TEST_F(Driver, NativeLaunchIsCapturedAndReplayed) {
  Native n;
  n.gate.open = true;
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_OK(standin_cuda_launch_native(stream, "captured_kernel", Native::body, &n, Native::destroy));
  CUgraph graph;
  CU_OK(cuStreamEndCapture(stream, &graph));
  CUgraphNode node;
  size_t count_nodes = 1;
  CU_OK(cuGraphGetNodes(graph, &node, &count_nodes));
  ASSERT_EQ(count_nodes, 1u);
  CUgraphNodeType type;
  CU_OK(cuGraphNodeGetType(node, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
  CUDA_KERNEL_NODE_PARAMS params;
  CU_OK(cuGraphKernelNodeGetParams(node, &params));
  const char* name = nullptr;
  CU_OK(cuFuncGetName(&name, params.func));
  EXPECT_STREQ(name, "captured_kernel");
  EXPECT_EQ(n.runs, 0);
  CUgraphExec exec;
  CU_OK(cuGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 4; i++) CU_OK(cuGraphLaunch(exec, stream));
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(n.runs, 4);
  CU_OK(cuGraphDestroy(graph));
  EXPECT_EQ(n.destroyed, 0);
  // Destroyed while a launch is in flight: what the launch needs stays until it has ended.
  n.gate.open = false;
  CU_OK(cuGraphLaunch(exec, stream));
  CU_OK(cuGraphExecDestroy(exec));
  EXPECT_EQ(n.destroyed, 0);
  n.gate.open = true;
  CU_OK(cuStreamSynchronize(stream));
  EXPECT_EQ(n.runs, 5);
  EXPECT_EQ(n.destroyed, 1);
}

TEST_F(Driver, NativeLaunchIsDestroyedWithAnInvalidCapture) {
  Native n;
  CU_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CU_OK(standin_cuda_launch_native(stream, "k", Native::body, &n, Native::destroy));
  CUdeviceptr p;
  EXPECT_EQ(cuMemAlloc(&p, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(standin_cuda_launch_native(stream, "k", Native::body, &n, Native::destroy),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(n.destroyed, 0) << "the failed launch owns nothing";
  CUgraph graph;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(n.runs, 0);
  EXPECT_EQ(n.destroyed, 1);
}

}  // namespace
}  // namespace standin::cuda::test
