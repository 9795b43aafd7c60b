#include "words.hpp"

#include <gradprobe/no_events.hpp>

namespace gradprobe::tool {

const char* const kScaleAssumption =
    "Norms are of each rank's input as given to NCCL. Frameworks scale gradients at different places (DDP divides by "
    "the "
    "number of ranks before the all-reduce, others use ncclAvg or divide afterwards), so absolute norms differ by a "
    "constant factor; their std/mean and the cosines don't.";

const char* missed_in_words(Missed reason) {
  switch (reason) {
    case Missed::none:
      return "measured";
    case Missed::timeout:
      return "NCCL named the buffers later than GRADPROBE_GATE_TIMEOUT";
    case Missed::launch_blocking:
      return "CUDA_LAUNCH_BLOCKING was set, which leaves no moment to measure in";
    case Missed::launch_failed:
      return "CUDA refused the measuring kernels";
    case Missed::backlog:
      return "too many collectives were in flight";
    case Missed::unsupported_datatype:
      return "the datatype is not measured";
    case Missed::unsupported_nccl:
      return "not measured: NCCL < 2.28, use the preload library (libgradprobe-preload.so)";
    case Missed::no_cuda:
      return "no usable CUDA driver, context or memory";
    case Missed::ambiguous:
      return "the launch could not be linked to its collective without doubt";
    case Missed::no_events:
      return "NCCL announced the call and reported no launch";
    case Missed::workspace:
      return "another measurement held the stream's workspace, or the communicator used more streams than there are "
             "workspaces";
    case Missed::result_lost:
      return "measured, but the collector fell too far behind to read it";
    case Missed::switched_off:
      return "gating was switched off for the process (its log says why)";
    case Missed::unsupported_function:
      return "the function is not measured";
    case Missed::not_selected:
      return "left out by GRADPROBE_COLLECTIVES, GRADPROBE_MIN_COUNT or GRADPROBE_DTYPES";
    case Missed::not_sampled:
      return "in a step that GRADPROBE_EVERY or the control file leaves out";
    case Missed::copy_engine:
      return "done by copy engines, without a kernel that a measurement could precede";
    case Missed::model_parallel:
      return "taken for activations of a model-parallel communicator (GRADPROBE_COMMS=all measures them)";
    case Missed::count_:
      break;
  }
  return "reason unknown to this version";
}

std::string missed_in_words(Missed reason, std::uint32_t profiler_abi) {
  if (reason != Missed::no_events) return missed_in_words(reason);
  return std::string(missed_in_words(reason)) + ": " + no_events_causes(profiler_abi);
}

const char* status_name(std::uint16_t missed) {
  return name(static_cast<Missed>(missed));
}

}  // namespace gradprobe::tool
