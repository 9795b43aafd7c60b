// One rank: its device, streams, memory and communicators, and the calls that it has made and not yet answered for.
//
// Around each call of NCCL the rank puts copies on the same stream: ahead of it the input comes from a source buffer,
// behind it the output goes to a place of its own, and then input and output are overwritten. So a measurement at any
// other moment than right before NCCL's kernel, or right behind it, finds other values.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "call.hpp"
#include "cuda.hpp"
#include "ledger.hpp"

namespace gradprobe::real {

inline constexpr int kStreams = 3;

// Device memory that is handed out from one end to the other and taken back as a whole.
class Arena {
 public:
  Arena() = default;
  Arena(CUdeviceptr memory, std::size_t bytes) : memory_(memory), bytes_(bytes) {}
  CUdeviceptr take(std::size_t bytes, std::size_t shift);  // `shift` bytes behind an address for any element
  void clear() { used_ = 0; }

 private:
  CUdeviceptr memory_ = 0;
  std::size_t bytes_ = 0, used_ = 0;
};

struct Comm {
  std::string name;
  ncclComm_t handle = nullptr;
  int rank = 0, ranks = 0;
  std::uint64_t calls = 0;
  bool blocking = true;
};

// A call with its buffers.
struct Issued {
  Call call;
  CUdeviceptr source = 0, send = 0, recv = 0, saved = 0;
  bool collected = false;
};

class Rank {
 public:
  Rank(int rank, int ranks, std::uint64_t seed, const std::string& folder);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  void make_current() const { REAL_CHECK(cuCtxSetCurrent(context_)); }
  CUstream stream(int i) const { return streams_[static_cast<std::size_t>(i)].get(); }

  Comm& comm(const std::string& name);
  Comm& add_comm(const Comm& comm) { return comms_[comm.name] = comm; }
  void note_comm(const Comm& comm) { ledger_.write(LedgerComm{comm.name, comm.rank, comm.ranks}); }
  void drop_comm(const std::string& name) { comms_.erase(name); }
  // Waits until no communicator has a call in progress; throws when one failed. A communicator that is being split off
  // has no handle yet, so its parent is asked instead.
  void settle();

  void set_mode(const std::string& mode) { mode_ = mode; }
  // Calls from here on have their send and receive buffers in this memory; the rank's own without one.
  void use_memory(Arena* arena) { buffers_ = arena != nullptr ? arena : &memory_; }

  // Makes one call. During a capture the input is not put into the source yet.
  void issue(const Spec& spec, bool captured);
  // Behind each call since the last time: copies its output away, and overwrites its buffers.
  void collect();
  // The calls of a graph, to be kept with it; their memory stays until give_back_calls().
  std::deque<Issued> take_calls();
  void give_back_calls() { graphs_--; }
  void next_generation(std::deque<Issued>* calls);
  // Notes `times` more replays of the calls, whose stream must have ended.
  void note_replays(std::deque<Issued>* calls, std::uint32_t times);

  void synchronize() const;
  // Waits for all streams, checks and notes what was issued outside graphs, and takes back its memory.
  void finish();
  // Instead of that, for calls that were aborted.
  void finish_aborted();

 private:
  void place_buffers(Issued* issued);
  void upload(const Issued& issued) const;
  void call_nccl(const Issued& issued, CUstream stream);
  void release_memory();
  static Bytes download(CUdeviceptr from, std::size_t bytes);

  const int rank_, ranks_;
  const std::uint64_t seed_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::vector<Stream> streams_;
  CUdeviceptr reserved_ = 0;
  Arena memory_;
  Arena* buffers_ = &memory_;
  std::map<std::string, Comm> comms_;
  std::string mode_;
  std::deque<Issued> issued_;
  std::size_t graphs_ = 0;  // whose calls still lie in the memory
  std::uint64_t exchanges_ = 0;
  LedgerWriter ledger_;
};

}  // namespace gradprobe::real
