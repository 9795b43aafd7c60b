#include "rank.hpp"

#include <time.h>

#include <algorithm>

namespace gradprobe::real {
namespace {

constexpr std::size_t kMemory = std::size_t{256} << 20;

void nap() {
  const timespec time{0, 200000};
  nanosleep(&time, nullptr);
}

}  // namespace

CUdeviceptr Arena::take(std::size_t bytes, std::size_t shift) {
  const std::size_t at = used_;
  used_ += (bytes + shift + 255) / 256 * 256 + 256;
  if (used_ > bytes_) throw std::runtime_error("the driver's own device memory is used up");
  return memory_ + at + shift;
}

Rank::Rank(int rank, int ranks, std::uint64_t seed, const std::string& folder)
    : rank_(rank), ranks_(ranks), seed_(seed), ledger_(folder + "/rank" + std::to_string(rank) + ".ledger") {
  REAL_CHECK(cuInit(0));
  REAL_CHECK(cuDeviceGet(&device_, rank));
  REAL_CHECK(cuDevicePrimaryCtxRetain(&context_, device_));
  make_current();
  for (int i = 0; i < kStreams; i++) streams_.push_back(make_stream());
  REAL_CHECK(cuMemAlloc(&reserved_, kMemory));
  memory_ = Arena(reserved_, kMemory);
}

Rank::~Rank() {
  if (cuCtxSetCurrent(context_) != CUDA_SUCCESS) return;
  streams_.clear();
  cuMemFree(reserved_);
  cuDevicePrimaryCtxRelease(device_);
}

Comm& Rank::comm(const std::string& name) {
  const auto found = comms_.find(name);
  if (found == comms_.end()) throw std::logic_error("no communicator " + name);
  return found->second;
}

void Rank::settle() {
  for (auto& [name, comm] : comms_) {
    if (comm.blocking || comm.handle == nullptr) continue;
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress; nap()) {
      REAL_CHECK(ncclCommGetAsyncError(comm.handle, &state));
      if (state != ncclSuccess && state != ncclInProgress) check(state, "a call that doesn't block");
    }
  }
}

// Unaligned as a bucket in the middle of a larger buffer is, the same on all ranks: NCCL's windows want that. There
// addresses are multiples of 4: up to 2.29 NCCL's symmetric kernels lose elements at other ones.
void Rank::place_buffers(Issued* issued) {
  const Call& call = issued->call;
  const std::size_t size = bytes_of(call.spec.type);
  const std::size_t shift = mixed(call.key, 7) % 5 * (buffers_ == &memory_ ? size : std::max<std::size_t>(size, 4));
  const std::size_t input = call.input_bytes(), output = std::max(call.output_bytes(), call.spec.count * size);
  issued->source = memory_.take(input, 0);
  if (call.output_bytes() > 0) issued->saved = memory_.take(call.output_bytes(), 0);
  if (call.spec.function == Function::exchange || !call.spec.in_place) {
    issued->send = buffers_->take(input, shift);
    issued->recv = buffers_->take(output, shift);
    return;
  }
  const CUdeviceptr both = buffers_->take(std::max(input, output), shift);
  const std::size_t part = static_cast<std::size_t>(call.rank) * call.spec.count * size;
  issued->send = call.spec.function == Function::all_gather ? both + part : both;
  issued->recv = call.spec.function == Function::reduce_scatter ? both + part : both;
}

void Rank::upload(const Issued& issued) const {
  const Bytes input = input_of(issued.call, issued.call.rank);
  REAL_CHECK(cuMemcpyHtoD(issued.source, input.data(), input.size()));
}

void Rank::call_nccl(const Issued& issued, CUstream stream) {
  const Spec& s = issued.call.spec;
  const void* send = pointer(issued.send);
  void* recv = pointer(issued.recv);
  const ncclComm_t comm = comms_.at(s.comm).handle;
  switch (s.function) {
    case Function::all_reduce:
      REAL_CHECK(ncclAllReduce(send, recv, s.count, s.type, s.op, comm, stream));
      return;
    case Function::reduce_scatter:
      REAL_CHECK(ncclReduceScatter(send, recv, s.count, s.type, s.op, comm, stream));
      return;
    case Function::reduce:
      REAL_CHECK(ncclReduce(send, recv, s.count, s.type, s.op, s.root, comm, stream));
      return;
    case Function::all_gather:
      REAL_CHECK(ncclAllGather(send, recv, s.count, s.type, comm, stream));
      return;
    case Function::broadcast:
      REAL_CHECK(ncclBroadcast(send, recv, s.count, s.type, s.root, comm, stream));
      return;
    case Function::exchange: {
      const Call& c = issued.call;
      REAL_CHECK(ncclGroupStart());
      REAL_CHECK(ncclSend(send, s.count, s.type, (c.rank + 1) % c.ranks, comm, stream));
      REAL_CHECK(ncclRecv(recv, s.count, s.type, (c.rank + c.ranks - 1) % c.ranks, comm, stream));
      REAL_CHECK(ncclGroupEnd());
    }
  }
}

void Rank::issue(const Spec& spec, bool captured) {
  Comm& c = comm(spec.comm);
  Issued issued;
  Call& call = issued.call;
  call.spec = spec;
  call.mode = mode_;
  call.rank = c.rank;
  call.ranks = c.ranks;
  call.captured = captured;
  call.op = c.calls;
  call.key = mixed(mixed(seed_, mixed(c.name)), c.calls);
  if (call.is_collective())
    c.calls++;
  else
    call.key = mixed(call.key, ++exchanges_);
  place_buffers(&issued);
  if (!captured) upload(issued);
  const CUstream on = stream(spec.stream);
  REAL_CHECK(cuMemcpyDtoDAsync(issued.send, issued.source, call.input_bytes(), on));
  issued_.push_back(issued);
  call_nccl(issued, on);
}

void Rank::collect() {
  for (Issued& i : issued_) {
    if (std::exchange(i.collected, true)) continue;
    const CUstream on = stream(i.call.spec.stream);
    const std::size_t output = i.call.output_bytes();
    if (output > 0) REAL_CHECK(cuMemcpyDtoDAsync(i.saved, i.recv, output, on));
    REAL_CHECK(cuMemsetD8Async(i.send, 0x5a, i.call.input_bytes(), on));
    if (output > 0) REAL_CHECK(cuMemsetD8Async(i.recv, 0xa5, output, on));
  }
}

std::deque<Issued> Rank::take_calls() {
  graphs_++;
  std::deque<Issued> taken, others;
  for (const Issued& i : issued_) (i.call.captured ? taken : others).push_back(i);
  issued_ = std::move(others);
  return taken;
}

void Rank::next_generation(std::deque<Issued>* calls) {
  for (Issued& i : *calls) {
    i.call.generation++;
    upload(i);
  }
}

Bytes Rank::download(CUdeviceptr from, std::size_t bytes) {
  Bytes result(bytes);
  if (bytes > 0) REAL_CHECK(cuMemcpyDtoH(result.data(), from, bytes));
  return result;
}

void Rank::note_replays(std::deque<Issued>* calls, std::uint32_t times) {
  for (Issued& i : *calls) {
    const Bytes output = download(i.saved, i.call.output_bytes());
    check_output(i.call, output);
    for (std::uint32_t n = 0; n < times && i.call.is_collective(); n++)
      ledger_.write(ledger_entry(i.call, ++i.call.replays, &output));
  }
}

void Rank::synchronize() const {
  for (const Stream& s : streams_) REAL_CHECK(cuStreamSynchronize(s.get()));
}

void Rank::finish() {
  synchronize();
  for (const Issued& i : issued_) {
    const Bytes output = download(i.saved, i.call.output_bytes());
    check_output(i.call, output);
    if (i.call.is_collective()) ledger_.write(ledger_entry(i.call, 0, &output));
  }
  release_memory();
}

void Rank::finish_aborted() {
  for (const Issued& i : issued_)
    if (i.call.is_collective()) ledger_.write(ledger_entry(i.call, 0, nullptr));
  release_memory();
}

void Rank::release_memory() {
  issued_.clear();
  if (graphs_ > 0) return;
  memory_.clear();
  if (buffers_ != &memory_) buffers_->clear();
}

}  // namespace gradprobe::real
