// One communicator's gate as the plugin would set it up: slots, entries, ring and workspace, and the launches.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "device.hpp"
#include "gradprobe/ring_format.hpp"
#include "kernels/abi.hpp"

namespace gradprobe::test {

struct RigOptions {
  std::uint32_t k = 1024;
  std::uint32_t ring_capacity = 64;
  std::uint32_t slots = 2;
  std::uint32_t flags = gate::kCountZeros;
  std::uint64_t timeout_ns = 20'000'000'000;
};

struct Measured {
  gate::Result head;
  std::vector<float> sketch;
};

class Rig {
 public:
  explicit Rig(const RigOptions& options = {});

  // Appends an entry to the slot. Slots have room for kMaxEntries.
  void add(std::uint32_t slot, const gate::GateEntry& entry);
  void publish(std::uint32_t slot, gate::SlotState state = gate::kSlotPublished);
  // Empties a slot for its next use.
  void reopen(std::uint32_t slot);

  // The gate and one measuring kernel per datatype, `ctas` each.
  void launch(std::uint32_t slot, std::uint32_t ctas, CUstream stream,
              std::initializer_list<Datatype> types = {Datatype::f32, Datatype::bf16, Datatype::f16});
  void launch_gate(std::uint32_t slot, CUstream stream);
  void launch_measure(std::uint32_t slot, Datatype type, std::uint32_t ctas, CUstream stream);

  // Takes what the ring holds, in order, and tells the device so.
  std::vector<Measured> collect();

  gate::GateSlot& slot(std::uint32_t i) { return slots_[i]; }
  gate::GateControl& control() { return control_[0]; }
  std::uint32_t runs(std::uint32_t i) { return std::atomic_ref(slots_[i].runs).load(std::memory_order_acquire); }
  gate::WorkspaceHead workspace() const;
  // Lets the run that holds the workspace look `ns` older than it is.
  void age_workspace(std::uint64_t ns);
  void set_launch(std::uint32_t number) { launch_ = number; }

 private:
  gate::GateParams params(std::uint32_t slot) const;

  RigOptions options_;
  Device& device_;
  PinnedArray<gate::GateSlot> slots_;
  PinnedArray<gate::GateEntry> arena_;
  PinnedArray<gate::GateControl> control_;
  PinnedArray<unsigned char> ring_;
  DeviceMemory workspace_;
  std::uint32_t launch_ = 1;
};

// Elements in device memory at a chosen misalignment, with untouched bytes around them.
class Bucket {
 public:
  // `offset`: bytes from an address that is a multiple of 256.
  Bucket(Datatype type, std::vector<std::uint32_t> bits, std::uint32_t offset = 0);

  gate::GateEntry entry(std::uint64_t key) const;
  Datatype type() const { return type_; }
  std::span<const std::uint32_t> bits() const { return bits_; }

 private:
  Datatype type_;
  std::vector<std::uint32_t> bits_;
  std::uint32_t offset_;
  DeviceMemory memory_;
};

}  // namespace gradprobe::test
