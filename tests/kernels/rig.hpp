// One communicator's channel as the plugin would set it up (slots, entries, ring, workspaces) and its launches.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "device.hpp"
#include "elements.hpp"
#include "kernels/abi.hpp"

namespace gradprobe::test {

struct RigOptions {
  std::uint32_t k = 1024;
  std::uint32_t ring_capacity = 64;
  std::uint32_t slots = 2;
  std::uint32_t workspaces = 1;
  std::uint32_t ctas = 64;  // the most of one pass
  std::uint32_t flags = gate::kCountZeros;
  std::uint64_t timeout_ns = 20'000'000'000;
};

// The kernel for buckets of one datatype.
using gate::measured_type;

// One pass.
struct Launch {
  std::uint32_t slot = 0;
  std::uint32_t ctas = 3;
  std::uint32_t kernel = gate::kMixed;  // MeasuredType or kMixed
  gate::Pass pass = gate::kInputPass;
  std::uint32_t workspace = 0;
  std::uint32_t number = 1;  // comes back in Result::launch
  // A replay of a graph: the parameters of the capture, whatever has been launched since. All launches of such a slot
  // and pass are replays, of one grid.
  bool replay = false;
  // CTAs that the host counts as launched before, but that never came: an error of the host.
  std::uint32_t lost = 0;
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

  void launch(const Launch& launch, const Stream& stream);

  // Takes what the ring holds, in order, and tells the device so.
  std::vector<Measured> collect();

  gate::GateSlot& slot(std::uint32_t i) { return slots_[i]; }
  gate::GateControl& control() { return control_[0]; }
  // Which replays are measured, and which of their results; all to begin with.
  void choose_replays(std::uint32_t every, std::uint32_t result_every) {
    control_[0].replay_every = every;
    control_[0].replay_result_every = result_every;
  }
  std::uint32_t runs(std::uint32_t slot) { return load(slots_[slot].runs); }
  std::uint32_t result_runs(std::uint32_t slot) { return load(slots_[slot].result_runs); }

  gate::SlotRuns slot_runs(std::uint32_t slot) const;
  gate::WorkspaceHead workspace(std::uint32_t i = 0) const;
  // As if another run held the workspace.
  void hold_workspace(std::uint32_t i, bool held);
  // The partial results of CTAs and blocks.
  std::vector<std::byte> partials(std::uint32_t workspace) const;
  void fill_partials(std::uint32_t workspace, unsigned char byte);

  // Nobody is in a pass, and all that a pass counts is ready for the next one. Says what isn't.
  testing::AssertionResult idle() const;

 private:
  static std::uint32_t load(std::uint32_t& counter) { return std::atomic_ref(counter).load(std::memory_order_acquire); }
  gate::GateParams params(const Launch& launch) const;

  RigOptions options_;
  Device& device_;
  gate::WorkspaceLayout layout_;
  PinnedArray<gate::GateSlot> slots_;
  PinnedArray<gate::GateEntry> arena_;
  PinnedArray<gate::GateControl> control_;
  PinnedArray<unsigned char> ring_;
  DeviceMemory channel_;
  std::vector<DeviceMemory> workspaces_;
  std::vector<std::array<std::uint64_t, 2>> arrivals_;  // of a slot: CTAs launched so far for the input, the result
};

// Elements in device memory at a chosen misalignment, with bytes around them that are NaN in every datatype: a kernel
// that takes them for elements can't go unnoticed.
class Bucket {
 public:
  // `offset`: bytes from an address that is a multiple of 256.
  explicit Bucket(const Elements& elements, std::uint32_t offset = 0);

  const Elements& elements() const { return elements_; }
  Datatype type() const { return elements_.type(); }
  CUdeviceptr address() const { return memory_.address() + offset_; }
  gate::GateEntry entry(std::uint64_t key) const;
  // An entry with this bucket as input and another one as output.
  gate::GateEntry entry(std::uint64_t key, const Bucket& output) const;

 private:
  Elements elements_;
  std::uint32_t offset_;
  DeviceMemory memory_;
};

}  // namespace gradprobe::test
