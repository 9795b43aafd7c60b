// Tells communicators that carry gradients from those that carry activations (tensor, sequence, context, expert
// parallelism), as well as NCCL's events allow: they name no purpose. What it decides depends only on what is equal on
// all ranks of a communicator: its name, its size and nodes, the job's nodes and the sequence of its calls, and on
// whether the process has other communicators, which is the same on all ranks as a rule. Used where
// GRADPROBE_COMMS is `auto`; the reasons are in docs/ARCHITECTURE.md, "Gradients or activations".
#pragma once

#include <gradprobe/ring_format.hpp>

#include <array>
#include <cstdint>
#include <string_view>

#include "selection.hpp"

namespace gradprobe {

enum class Role { undecided, gradients, activations };

// What a communicator's name says: words such as dp, data, fsdp for gradients, tp, tensor, cp, pp for others.
Role role_of_name(std::string_view name);

// By the sequence of large calls. One thread at a time, as NCCL's users must call a communicator.
class TrafficRole {
 public:
  static constexpr std::uint64_t kLarge = 65536;  // elements; smaller inputs decide nothing and are always taken
  static constexpr std::uint32_t kWindow = 64;    // large calls after which the undecided is decided

  TrafficRole() = default;
  // `one_of_several_nodes`: its ranks are on one node, the job's are not. `has_siblings`: the process has other
  // communicators, so model parallelism is possible.
  explicit TrafficRole(bool one_of_several_nodes) : inside_node_(one_of_several_nodes) {}

  // The next call, whatever its function. Whether its input may be a gradient.
  bool takes(Function function, Datatype datatype, std::uint64_t count, bool has_siblings) {
    if (count < kLarge) return true;
    return decided_ ? role_ != Role::activations : observe(function, datatype, count, has_siblings);
  }
  // The functions of which large calls can decide something, as a set of Selection::bit(Function).
  std::uint32_t watched_functions() const {
    const std::uint32_t sharded = Selection::bit(Function::reduce_scatter) | Selection::bit(Function::all_gather);
    return inside_node_ ? sharded | Selection::bit(Function::all_reduce) : sharded;
  }
  Role role() const { return role_; }
  bool decided() const { return decided_; }

 private:
  bool observe(Function function, Datatype datatype, std::uint64_t count, bool has_siblings);
  void decide(Role role) {
    role_ = role;
    decided_ = true;
  }

  struct Shape {
    std::uint64_t signature = 0;
    std::uint32_t calls = 0;
  };
  std::array<Shape, 8> shapes_{};  // of all-reduces
  std::uint32_t all_reduces_ = 0;
  std::uint32_t sharded_ = 0;  // reduce-scatters and all-gathers
  std::uint32_t scatters_ = 0;
  std::uint32_t same_in_a_row_ = 0;
  Function last_sharded_ = Function::unknown;
  bool inside_node_ = false;
  bool decided_ = false;
  Role role_ = Role::undecided;
};

}  // namespace gradprobe
