// NCCL for one rank: the calls the demo makes, with errors as exceptions and without a wait that can't end.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda_driver.hpp"
#include "options.hpp"
#include "shared_state.hpp"

namespace gradprobe::demo {

class NcclError : public std::runtime_error {
 public:
  NcclError(ncclResult_t result, const std::string& what, ncclComm_t comm);
};

// Another rank has ended: the parent has said, or will say, which one and why.
class PeerLost : public std::exception {};

ncclDataType_t nccl_type(BucketType type);

class Communicator {
 public:
  // Collective over all ranks; rank 0 makes the unique id.
  Communicator(SharedState& shared, int ranks, int rank, int timeout_s);
  // Without finish(): aborts, which also ends kernels that wait for a lost peer.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  void broadcast(CUdeviceptr data, std::size_t count, CUstream stream);  // float32, from rank 0, in place
  void all_reduce(CUdeviceptr data, std::size_t count, BucketType type, ncclRedOp_t op, CUstream stream);  // in place
  std::uint64_t calls() const { return calls_; }  // collectives enqueued so far

  // Waits until `event` has happened; throws when NCCL reports an error, a peer is lost, or the time is up.
  void wait(const Event& event, int step) const;

  void finish();

 private:
  [[noreturn]] void fail(ncclResult_t result, const char* what) const;

  SharedState& shared_;
  int timeout_s_;
  ncclComm_t comm_ = nullptr;
  std::uint64_t calls_ = 0;
};

}  // namespace gradprobe::demo
