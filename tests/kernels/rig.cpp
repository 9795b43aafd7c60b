#include "rig.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace gradprobe::test {
namespace {

std::vector<std::byte> with_surroundings(std::span<const std::byte> content, std::uint32_t offset) {
  std::vector<std::byte> bytes(offset + content.size() + 64, std::byte{0xff});
  std::copy(content.begin(), content.end(), bytes.begin() + offset);
  return bytes;
}

DeviceMemory zeroed(std::size_t bytes) {
  DeviceMemory memory(bytes);
  check(cuMemsetD8(memory.address(), 0, bytes), "cuMemsetD8");
  check(cuCtxSynchronize(), "cuCtxSynchronize");
  return memory;
}

}  // namespace

Rig::Rig(const RigOptions& options)
    : options_(options),
      device_(Device::get()),
      layout_(gate::workspace_layout(options.k, options.ctas)),
      slots_(options.slots),
      arena_(std::size_t{options.slots} * gate::kMaxEntries),
      control_(1),
      ring_(std::size_t{options.ring_capacity} * gate::result_bytes(options.k)),
      channel_(zeroed(sizeof(gate::ChannelState) + options.slots * sizeof(gate::SlotRuns))),
      arrivals_(options.slots) {
  choose_replays(1, 1);
  for (std::uint32_t i = 0; i < options.workspaces; ++i) workspaces_.push_back(zeroed(layout_.bytes));
  for (std::uint32_t i = 0; i < options.slots; ++i) slots_[i].first_entry = i * gate::kMaxEntries;
}

void Rig::add(std::uint32_t slot, const gate::GateEntry& entry) {
  gate::GateSlot& s = slots_[slot];
  if (s.entries == gate::kMaxEntries) throw std::length_error("the slot is full");
  arena_[s.first_entry + s.entries++] = entry;
}

void Rig::publish(std::uint32_t slot, gate::SlotState state) {
  std::atomic_ref(slots_[slot].state).store(state, std::memory_order_release);
}

void Rig::reopen(std::uint32_t slot) {
  gate::GateSlot& s = slots_[slot];
  s.entries = s.runs = s.result_runs = s.dropped = 0;
  s.state = gate::kSlotOpen;
}

gate::GateParams Rig::params(const Launch& launch) const {
  const auto state = reinterpret_cast<gate::ChannelState*>(channel_.address());
  gate::GateParams p{};
  p.slot = slots_.on_device() + launch.slot;
  p.arena = arena_.on_device();
  p.control = control_.on_device();
  p.results = ring_.on_device();
  p.channel = state;
  p.slot_runs = reinterpret_cast<gate::SlotRuns*>(state + 1) + launch.slot;
  p.workspace = reinterpret_cast<gate::WorkspaceHead*>(workspaces_[launch.workspace].address());
  p.first_arrival = launch.replay ? 0 : arrivals_[launch.slot][launch.pass] + launch.lost;
  p.timeout_ns = options_.timeout_ns;
  p.slot_index = launch.slot;
  p.result_capacity = options_.ring_capacity;
  p.sketch_floats = options_.k;
  p.workspace_ctas = options_.ctas;
  p.flags = options_.flags;
  p.launch = launch.number;
  p.pass = launch.pass;
  p.flags |= launch.replay ? gate::kReplayed : 0;
  return p;
}

void Rig::launch(const Launch& launch, const Stream& stream) {
  if (launch.ctas > options_.ctas) throw std::invalid_argument("more CTAs than the workspace is laid out for");
  gate::GateParams p = params(launch);
  void* arguments[] = {&p};
  check(cuLaunchKernel(device_.kernel(gate::kMeasureKernels[launch.kernel]), launch.ctas, 1, 1, gate::kThreads, 1, 1, 0,
                       stream.get(), arguments, nullptr),
        "cuLaunchKernel");
  arrivals_[launch.slot][launch.pass] += launch.ctas + launch.lost;
}

std::vector<Measured> Rig::collect() {
  std::vector<Measured> results;
  std::uint64_t next = control_[0].consumed;
  for (;; ++next) {
    unsigned char* at = ring_.data() + next % options_.ring_capacity * gate::result_bytes(options_.k);
    auto* result = reinterpret_cast<gate::Result*>(at);
    if (std::atomic_ref(result->seq).load(std::memory_order_acquire) != next + 1) break;
    Measured m;
    std::memcpy(&m.head, result, sizeof(m.head));
    m.sketch.resize(m.head.sketch_floats);
    std::copy_n(reinterpret_cast<const float*>(at + sizeof(m.head)), m.sketch.size(), m.sketch.data());
    results.push_back(std::move(m));
  }
  std::atomic_ref(control_[0].consumed).store(next, std::memory_order_release);
  return results;
}

gate::WorkspaceHead Rig::workspace(std::uint32_t i) const {
  gate::WorkspaceHead head;
  check(cuMemcpyDtoH(&head, workspaces_[i].address(), sizeof(head)), "cuMemcpyDtoH");
  return head;
}

void Rig::hold_workspace(std::uint32_t i, bool held) {
  const std::uint32_t taken = held;
  check(cuMemcpyHtoD(workspaces_[i].address() + offsetof(gate::WorkspaceHead, taken), &taken, sizeof(taken)),
        "cuMemcpyHtoD");
  check(cuCtxSynchronize(), "cuCtxSynchronize");
}

std::vector<std::byte> Rig::partials(std::uint32_t workspace) const {
  std::vector<std::byte> bytes(layout_.bytes - layout_.cta_scalars);
  check(cuMemcpyDtoH(bytes.data(), workspaces_[workspace].address() + layout_.cta_scalars, bytes.size()),
        "cuMemcpyDtoH");
  return bytes;
}

void Rig::fill_partials(std::uint32_t workspace, unsigned char byte) {
  check(cuMemsetD8(workspaces_[workspace].address() + layout_.cta_scalars, byte, layout_.bytes - layout_.cta_scalars),
        "cuMemsetD8");
  check(cuCtxSynchronize(), "cuCtxSynchronize");
}

gate::SlotRuns Rig::slot_runs(std::uint32_t slot) const {
  gate::SlotRuns runs;
  check(cuMemcpyDtoH(&runs, channel_.address() + sizeof(gate::ChannelState) + slot * sizeof(runs), sizeof(runs)),
        "cuMemcpyDtoH");
  return runs;
}

testing::AssertionResult Rig::idle() const {
  const auto failure = [] { return testing::AssertionFailure(); };
  for (std::uint32_t i = 0; i < options_.workspaces; ++i) {
    const gate::WorkspaceHead head = workspace(i);
    if (head.taken != 0) return failure() << "workspace " << i << " is taken";
    for (const std::uint32_t ticket : head.cta_tickets) {
      if (ticket != 0) return failure() << "workspace " << i << ": a CTA's ticket is " << ticket;
    }
    for (const std::uint32_t ticket : head.block_tickets) {
      if (ticket != 0) return failure() << "workspace " << i << ": a block's ticket is " << ticket;
    }
  }
  for (std::uint32_t i = 0; i < options_.slots; ++i) {
    const gate::SlotRuns runs = slot_runs(i);
    for (const auto& [run, launched] : {std::pair{&runs.input, arrivals_[i][0]}, {&runs.result, arrivals_[i][1]}}) {
      if (run->arrived != launched || run->departed != launched) {
        return failure() << "slot " << i << ": " << launched << " CTAs were launched, " << run->arrived << " arrived, "
                         << run->departed << " departed";
      }
    }
  }
  return testing::AssertionSuccess();
}

Bucket::Bucket(const Elements& elements, std::uint32_t offset)
    : elements_(elements), offset_(offset), memory_(with_surroundings(elements.bytes(), offset)) {}

gate::GateEntry Bucket::entry(std::uint64_t key) const {
  gate::GateEntry e{};
  e.input = address();
  e.count = elements_.size();
  e.key = key;
  e.datatype = static_cast<std::uint8_t>(type());
  e.mode = gate::kBucket;
  return e;
}

gate::GateEntry Bucket::entry(std::uint64_t key, const Bucket& output) const {
  gate::GateEntry e = entry(key);
  e.output = output.address();
  e.output_count = output.elements().size();
  return e;
}

}  // namespace gradprobe::test
