#include "rig.hpp"

#include <algorithm>
#include <cstring>

namespace gradprobe::test {
namespace {

const char* kernel_name(Datatype type) {
  switch (type) {
    case Datatype::f32:
      return gate::kMeasureF32;
    case Datatype::bf16:
      return gate::kMeasureBf16;
    case Datatype::f16:
      return gate::kMeasureF16;
    default:
      throw std::invalid_argument("no measuring kernel for this datatype");
  }
}

void launch_kernel(CUfunction function, std::uint32_t ctas, std::uint32_t threads, CUstream stream,
                   gate::GateParams params) {
  void* arguments[] = {&params};
  check(cuLaunchKernel(function, ctas, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr), "cuLaunchKernel");
}

// The bytes around a bucket are NaN in every datatype: a kernel that takes them for elements can't go unnoticed.
std::vector<std::byte> with_surroundings(Datatype type, std::span<const std::uint32_t> bits, std::uint32_t offset) {
  const std::size_t size = element_bytes(type);
  std::vector<std::byte> bytes(offset + bits.size() * size + 64, std::byte{0xff});
  for (std::size_t i = 0; i < bits.size(); ++i) std::memcpy(bytes.data() + offset + i * size, &bits[i], size);
  return bytes;
}

}  // namespace

Rig::Rig(const RigOptions& options)
    : options_(options),
      device_(Device::get()),
      slots_(options.slots),
      arena_(std::size_t{options.slots} * gate::kMaxEntries),
      control_(1),
      ring_(std::size_t{options.ring_capacity} * gate::result_bytes(options.k)),
      workspace_(gate::workspace_layout(options.k).bytes) {
  device_.make_current();
  check(cuMemsetD8(workspace_.address(), 0, gate::workspace_layout(options.k).bytes), "cuMemsetD8");
  for (std::uint32_t i = 0; i < options.slots; ++i) slots_[i].first_entry = i * gate::kMaxEntries;
}

void Rig::add(std::uint32_t slot, const gate::GateEntry& entry) {
  gate::GateSlot& s = slots_[slot];
  arena_[s.first_entry + s.entries++] = entry;
}

void Rig::publish(std::uint32_t slot, gate::SlotState state) {
  std::atomic_ref(slots_[slot].state).store(state, std::memory_order_release);
}

void Rig::reopen(std::uint32_t slot) {
  gate::GateSlot& s = slots_[slot];
  s.entries = s.runs = s.dropped = 0;
  s.state = gate::kSlotOpen;
}

gate::GateParams Rig::params(std::uint32_t slot) const {
  gate::GateParams p{};
  p.slot = slots_.on_device() + slot;
  p.arena = arena_.on_device();
  p.control = control_.on_device();
  p.results = ring_.on_device();
  p.workspace = reinterpret_cast<gate::WorkspaceHead*>(workspace_.address());
  p.timeout_ns = options_.timeout_ns;
  p.slot_index = slot;
  p.result_capacity = options_.ring_capacity;
  p.sketch_floats = options_.k;
  p.flags = options_.flags;
  p.launch = launch_;
  return p;
}

void Rig::launch_gate(std::uint32_t slot, CUstream stream) {
  launch_kernel(device_.kernel(gate::kGateKernel), 1, gate::kGateThreads, stream, params(slot));
}

void Rig::launch_measure(std::uint32_t slot, Datatype type, std::uint32_t ctas, CUstream stream) {
  launch_kernel(device_.kernel(kernel_name(type)), ctas, gate::kThreads, stream, params(slot));
}

void Rig::launch(std::uint32_t slot, std::uint32_t ctas, CUstream stream, std::initializer_list<Datatype> types) {
  launch_gate(slot, stream);
  for (const Datatype type : types) launch_measure(slot, type, ctas, stream);
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

gate::WorkspaceHead Rig::workspace() const {
  gate::WorkspaceHead head;
  check(cuMemcpyDtoH(&head, workspace_.address(), sizeof(head)), "cuMemcpyDtoH");
  return head;
}

void Rig::age_workspace(std::uint64_t ns) {
  const std::uint64_t since = workspace().busy_since - ns;
  check(cuMemcpyHtoD(workspace_.address() + offsetof(gate::WorkspaceHead, busy_since), &since, sizeof(since)),
        "cuMemcpyHtoD");
}

Bucket::Bucket(Datatype type, std::vector<std::uint32_t> bits, std::uint32_t offset)
    : type_(type), bits_(std::move(bits)), offset_(offset), memory_(with_surroundings(type, bits_, offset)) {}

gate::GateEntry Bucket::entry(std::uint64_t key) const {
  gate::GateEntry e{};
  e.input = memory_.address() + offset_;
  e.count = bits_.size();
  e.key = key;
  e.datatype = static_cast<std::uint8_t>(type_);
  e.mode = gate::kBucket;
  return e;
}

}  // namespace gradprobe::test
