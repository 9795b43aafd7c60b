// Where the ranks of one start meet, as processes or as threads: memory that they share, made before the fork.
#pragma once

#include <nccl.h>
#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace gradprobe::real {

class Meeting {
 public:
  static constexpr int kMaxRanks = 8;

  // `teams`: threads of control, each with one rank or several. The memory stays mapped until the process ends.
  static Meeting* make(int teams);

  // Until all teams are here.
  void wait();
  // All teams ask in the same order; the team with rank 0 makes the id.
  ncclUniqueId unique_id(std::uint64_t number, bool makes);

  // What a rank is doing, for the message when nothing makes progress any more.
  void report(int rank, const std::string& doing);
  std::uint64_t reports() const { return reports_.load(); }
  std::string doing(int rank) const { return doing_[rank]; }

 private:
  static constexpr std::uint64_t kIds = 64;
  pthread_barrier_t barrier_;
  ncclUniqueId ids_[kIds];
  std::atomic<std::uint64_t> reports_;
  char doing_[kMaxRanks][128];
};

}  // namespace gradprobe::real
