// Every setting of the plugin, in one place. All come from the environment, are read once per communicator in NCCL's
// init call, and never stop a run: a value that can't be used is named in one warning and the default is taken.
// The same table, for users, is in README.md ("Configuration"); the settings in force are kept in each ring's header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control.hpp"
#include "selection.hpp"

namespace gradprobe {

enum class LogTarget { automatic, nccl, stderr_only, off };

struct Config {
  // GRADPROBE (0 or 1, default 1): 0 loads the plugin without measuring or writing anything.
  bool enabled = true;

  // GRADPROBE_DIR (folder, default /dev/shm/gradprobe-UID/JOB): where ring files go; created with mode 0700.
  // JOB is GRADPROBE_JOB, else SLURM_JOB_ID, else TORCHELASTIC_RUN_ID, else "ppid-" and the parent's process id, which
  // the ranks of one launcher on a host share.
  std::string directory;
  bool default_directory = true;

  // GRADPROBE_JOB (text, default as above): the job's name, kept in the ring's header.
  std::string job;

  // GRADPROBE_RING_MB (MiB per communicator and rank, 1 ... 65536, default 32): size of a ring file, allocated in full
  // at start. When it is not set and the file system is too small, smaller sizes down to 1 MiB are tried.
  std::uint64_t ring_mb = 32;
  bool ring_mb_set = false;

  // GRADPROBE_SKETCH (floats: 0, 256, 512, 1024, 2048 or 4096, default 1024): size of the gradient sketch; the error of
  // a cosine is about 1/sqrt(size) per bucket. 0 keeps norms and counts only. Must be equal on all ranks.
  std::uint32_t sketch_floats = 1024;

  // GRADPROBE_SEED (0 ... 2^64-1, default 0x6772616470726f62): seed of the sketch. Must be equal on all ranks.
  std::uint64_t seed = 0x6772616470726f62ull;

  // GRADPROBE_GATE_TIMEOUT (milliseconds, 1 ... 10000, default 100): how long the device waits at most for the host to
  // tell a collective's buffers. After it the collective runs unmeasured and is counted as missed(timeout).
  std::uint32_t gate_timeout_ms = 100;

  // GRADPROBE_MAX_CTAS (thread blocks, 1 ... 256, default 32): how many thread blocks a measurement uses at most. More
  // finish a large bucket sooner, fewer leave more of the device to the computation that overlaps.
  std::uint32_t max_ctas = 32;

  // GRADPROBE_ZEROS (0 or 1, default 0): also count elements equal to zero (costs about a third more instructions).
  bool count_zeros = false;

  // GRADPROBE_COLLECTIVES (list of AllReduce, ReduceScatter, Reduce, AllGather, Broadcast in any case, default all):
  // whose inputs are measured. Of AllGather and Broadcast only inputs of up to 8 elements ever are.
  // GRADPROBE_MIN_COUNT (elements, 0 ... 2^63, default 0): smaller inputs are left out, but those of up to 8 elements.
  // GRADPROBE_DTYPES (list of f32, bf16, f16, f64, f8e4m3, f8e5m2, ..., default all): datatypes of inputs of more than
  // 8 elements.
  // All three: the same on all ranks. What they leave out is counted as missed(not_selected).
  Selection selection;

  // GRADPROBE_COMMS (auto, all, or a list of terms as in CommFilter, default auto): which communicators. auto leaves
  // out those that seem to carry activations (traffic_role.hpp).
  CommFilter comms;

  // GRADPROBE_EVERY (1 ... 1000000000, default 1): measure every n-th step. All are measured until the steps are known;
  // of a graph's replays every n-th. What is left out is counted as missed(not_sampled).
  // GRADPROBE_RESULT_EVERY (0 ... 1000000000, default 0; GRADPROBE_RESULT is its older name): in every n-th step also
  // measure what the collective leaves in the output, with a fingerprint of its bits. 0: never. Only where the input is
  // measured. For all-reduce the results of all ranks must be equal.
  Sampling sampling;

  // GRADPROBE_CONTROL (path, default GRADPROBE_DIR/control): file by which the two above can be changed while the run
  // goes on (control.hpp).
  std::string control_file;

  // Nodes of the job as its launcher tells them (torchrun: GROUP_WORLD_SIZE; Slurm: SLURM_JOB_NUM_NODES, SLURM_NNODES;
  // WORLD_SIZE / LOCAL_WORLD_SIZE); 0: unknown.
  std::uint32_t job_nodes = 0;

  // GRADPROBE_OPS_PER_STEP (recorded collectives per optimizer step, 0 ... 1048576, default 0): 0 finds the period of
  // the sequence of collectives by itself.
  std::uint64_t ops_per_step = 0;

  // GRADPROBE_LOG (auto, nccl, stderr or off, default auto): where messages go. nccl: NCCL's logger, which prints what
  // NCCL_DEBUG allows. auto: the same, but while NCCL_DEBUG is not set, warnings and rank 0's banner and summary go to
  // stderr.
  LogTarget log = LogTarget::automatic;

  // GRADPROBE_CHAIN (file or name, default none): another profiler plugin that gets its events too; see chain.hpp. Read
  // once per process.
  std::string chain;

  // CUDA_LAUNCH_BLOCKING (CUDA's own): launches return when the kernel has ended, so nothing can be gated.
  bool launch_blocking = false;

  // What was wrong with the environment, one line each.
  std::vector<std::string> warnings;

  // The settings in force as "NAME=value\n" lines, for the ring's header.
  std::string text() const;
};

// Reads the environment. Not thread-safe against setenv(), like getenv() itself.
Config read_config();

}  // namespace gradprobe
