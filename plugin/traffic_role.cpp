#include "traffic_role.hpp"

#include <gradprobe/step_detector.hpp>

#include <algorithm>
#include <cctype>
#include <string>

namespace gradprobe {
namespace {

constexpr std::string_view kGradientWords[] = {"data", "dp", "ddp", "fsdp", "hsdp", "zero", "replicate", "shard"};
constexpr std::string_view kOtherWords[] = {"tensor", "tp", "sequence", "sp", "context", "cp",
                                            "expert", "ep", "pipeline", "pp", "model",   "mp"};

bool contains(const auto& list, std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

}  // namespace

Role role_of_name(std::string_view name) {
  bool gradients = false, other = false;
  std::string word;
  for (std::size_t i = 0; i <= name.size(); i++) {
    const char c = i < name.size() ? name[i] : ' ';
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    gradients |= contains(kGradientWords, word);
    other |= contains(kOtherWords, word);
    word.clear();
  }
  // "expert_data_parallel", "tensor_and_data_parallel": gradients are reduced there.
  return gradients ? Role::gradients : other ? Role::activations : Role::undecided;
}

bool TrafficRole::observe(Function function, Datatype datatype, std::uint64_t count, bool has_siblings) {
  if (function == Function::reduce_scatter || function == Function::all_gather) {
    same_in_a_row_ = function == last_sharded_ ? same_in_a_row_ + 1 : 1;
    last_sharded_ = function;
    sharded_++;
    scatters_ += function == Function::reduce_scatter ? 1 : 0;
    // Sharded data parallelism gathers the layers' parameters one after another, or scatters their gradients so.
    // Sequence parallelism takes turns within each layer.
    if (same_in_a_row_ >= 3)
      decide(Role::gradients);
    else if (sharded_ >= kWindow && has_siblings && scatters_ > 0)
      decide(Role::activations);
    return role_ != Role::activations;
  }
  if (!inside_node_ || function != Function::all_reduce) return true;
  // Activations have one shape, again and again; the buckets of gradients differ.
  const std::uint64_t signature = step_signature(function, datatype, count);
  all_reduces_++;
  std::uint32_t most = 0;
  for (Shape& shape : shapes_) {
    if (shape.calls == 0) shape.signature = signature;
    if (shape.signature == signature) {
      shape.calls++;
      break;
    }
  }
  for (const Shape& shape : shapes_) most = std::max(most, shape.calls);
  if (all_reduces_ >= 4 && 2 * most <= all_reduces_)
    decide(Role::gradients);
  else if (all_reduces_ >= kWindow)
    decide(Role::activations);
  return role_ == Role::gradients;
}

}  // namespace gradprobe
