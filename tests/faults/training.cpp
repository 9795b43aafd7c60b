#include "training.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace gradprobe::faults {

void check(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return;
  std::fprintf(stderr, "rank: %s: CUDA error %d\n", what, static_cast<int>(r));
  std::_Exit(2);
}

void check(ncclResult_t r, const char* what) {
  if (r == ncclSuccess) return;
  std::fprintf(stderr, "rank: %s: %s\n", what, ncclGetErrorString(r));
  std::_Exit(3);
}

int number(const char* name, int standard) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : standard;
}

ncclUniqueId unique_id(int round) {
  ncclUniqueId id{};
  const char* text = std::getenv("FAULTS_ID");
  for (std::size_t i = 0; text != nullptr && i < sizeof id.internal && text[2 * i] != '\0'; i++) {
    const char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};
    id.internal[i] = static_cast<char>(std::strtoul(pair, nullptr, 16));
  }
  id.internal[20] = static_cast<char>(id.internal[20] ^ round);
  return id;
}

Training::Training() : rank_(number("FAULTS_RANK", 0)), ranks_(number("FAULTS_RANKS", 1)) {
  FAULTS_CHECK(cuInit(0));
  CUdevice device = 0;
  FAULTS_CHECK(cuDeviceGet(&device, rank_));
  FAULTS_CHECK(cuDevicePrimaryCtxRetain(&context_, device));
  FAULTS_CHECK(cuCtxSetCurrent(context_));
  FAULTS_CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  for (std::size_t i = 0; i < kBuckets; i++) {
    FAULTS_CHECK(cuMemAlloc(&device_[i], kCounts[i] * sizeof(float)));
    weights_[i].resize(kCounts[i]);
    host_[i].resize(kCounts[i]);
    for (std::size_t j = 0; j < kCounts[i]; j++) weights_[i][j] = std::sin(static_cast<float>(i * 131 + j));
  }
}

void Training::join(int round) {
  FAULTS_CHECK(ncclCommInitRank(&comm_, ranks_, unique_id(round), rank_));
  FAULTS_CHECK(ncclCommSplit(comm_, 0, rank_, &loss_comm_, nullptr));
  expect_own_state();
}

void Training::expect_own_state() const {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  FAULTS_CHECK(cuThreadExchangeStreamCaptureMode(&mode));
  CUcontext current = nullptr;
  FAULTS_CHECK(cuCtxGetCurrent(&current));
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL && current == context_) return;
  std::fprintf(stderr, "rank: the thread's CUDA state was changed (capture mode %d)\n", static_cast<int>(mode));
  std::_Exit(5);
}

void Training::capture() {
  FAULTS_CHECK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  all_reduce(kCaptured);
  CUgraph graph = nullptr;
  FAULTS_CHECK(cuStreamEndCapture(stream_, &graph));
  FAULTS_CHECK(cuGraphInstantiate(&graph_, graph, 0));
  FAULTS_CHECK(cuGraphDestroy(graph));
}

void Training::all_reduce(std::size_t bucket) {
  void* p = reinterpret_cast<void*>(device_[bucket]);
  FAULTS_CHECK(
      ncclAllReduce(p, p, kCounts[bucket], ncclFloat32, ncclSum, bucket == kLoss ? loss_comm_ : comm_, stream_));
}

void Training::put_gradients(int step) {
  for (std::size_t i = 0; i < kBuckets; i++) {
    // Of the weights, the rank and the step: no two ranks' gradients are alike.
    for (std::size_t j = 0; j < kCounts[i]; j++)
      host_[i][j] = weights_[i][j] * static_cast<float>(rank_ + 1) / 7.0f +
                    std::cos(static_cast<float>(j + 1) * static_cast<float>(rank_ * 17 + step + 1));
    FAULTS_CHECK(cuMemcpyHtoD(device_[i], host_[i].data(), kCounts[i] * sizeof(float)));
  }
}

void Training::update() {
  FAULTS_CHECK(cuStreamSynchronize(stream_));
  ncclResult_t error = ncclSuccess;
  FAULTS_CHECK(ncclCommGetAsyncError(comm_, &error));
  FAULTS_CHECK(error);
  take_gradients();
}

void Training::take_gradients() {
  float loss = 0;
  FAULTS_CHECK(cuMemcpyDtoH(&loss, device_[kLoss], sizeof loss));
  const float rate = 0.01f / (1.0f + std::fabs(loss));
  for (std::size_t i = 0; i < kBuckets; i++) {
    FAULTS_CHECK(cuMemcpyDtoH(host_[i].data(), device_[i], kCounts[i] * sizeof(float)));
    for (std::size_t j = 0; j < kCounts[i]; j++) weights_[i][j] -= rate * host_[i][j];
  }
}

void Training::step(int step, const std::function<void()>& after_first) {
  put_gradients(step);
  all_reduce(0);
  if (after_first) after_first();
  FAULTS_CHECK(ncclGroupStart());
  all_reduce(1);
  all_reduce(2);
  FAULTS_CHECK(ncclGroupEnd());
  if (graph_ != nullptr)
    FAULTS_CHECK(cuGraphLaunch(graph_, stream_));
  else
    all_reduce(kCaptured);
  all_reduce(kLoss);
  update();
}

bool Training::try_step(int step) {
  put_gradients(step);
  void* p = reinterpret_cast<void*>(device_[0]);
  return ncclAllReduce(p, p, kCounts[0], ncclFloat32, ncclSum, comm_, stream_) == ncclSuccess;
}

void Training::leave() {
  if (graph_ != nullptr) FAULTS_CHECK(cuGraphExecDestroy(graph_));
  graph_ = nullptr;
  FAULTS_CHECK(ncclCommDestroy(loss_comm_));
  FAULTS_CHECK(ncclCommDestroy(comm_));
  comm_ = loss_comm_ = nullptr;
  expect_own_state();
}

void Training::abort() {
  FAULTS_CHECK(ncclCommAbort(loss_comm_));
  FAULTS_CHECK(ncclCommAbort(comm_));
}

void Training::save() const {
  const char* path = std::getenv("FAULTS_OUT");
  if (path == nullptr) return;
  std::ofstream out(path, std::ios::binary);
  for (const std::vector<float>& w : weights_)
    out.write(reinterpret_cast<const char*>(w.data()), static_cast<std::streamsize>(w.size() * sizeof(float)));
}

}  // namespace gradprobe::faults
