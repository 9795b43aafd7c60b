#include "call.hpp"

#include <cmath>
#include <stdexcept>

namespace gradprobe::real {
namespace {

constexpr std::size_t kRawElements = 8;  // up to so many, a ring file keeps the bytes

bool reduces(Function f) {
  return f == Function::all_reduce || f == Function::reduce_scatter || f == Function::reduce;
}

BufferFacts buffer_facts(const Bytes& bytes, ncclDataType_t type) {
  const std::vector<double> values = decoded(bytes, type);
  const Facts facts = facts_of(values);
  BufferFacts result{values.size(), facts.sum_squares,     facts.max_abs,      facts.nans,
                     facts.infs,    facts.first_nonfinite, fingerprint(bytes), {}};
  static constexpr char kDigits[] = "0123456789abcdef";
  if (values.size() <= kRawElements)
    for (const unsigned char b : bytes) result.raw += {kDigits[b >> 4], kDigits[b & 15]};
  return result;
}

[[noreturn]] void wrong(const Call& call, std::size_t element, double is, double should) {
  throw std::runtime_error(std::string("wrong result: ") + name(call.spec.function) + " " + name(call.spec.type) +
                           " count " + std::to_string(call.spec.count) + " op " + std::to_string(call.op) +
                           ": element " + std::to_string(element) + " is " + std::to_string(is) + ", not " +
                           std::to_string(should));
}

// What is moved without a change: all bits are known.
void check_moved(const Call& call, const Bytes& output) {
  Bytes expected;
  switch (call.spec.function) {
    case Function::all_gather:
      for (int q = 0; q < call.ranks; q++) {
        const Bytes part = input_of(call, q);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      break;
    case Function::broadcast:
      expected = input_of(call, call.spec.root);
      break;
    default:
      expected = input_of(call, (call.rank + call.ranks - 1) % call.ranks);
  }
  if (output == expected) return;
  const std::vector<double> is = decoded(output, call.spec.type), should = decoded(expected, call.spec.type);
  for (std::size_t i = 0; i < should.size(); i++)
    if (is[i] != should[i] && !(std::isnan(is[i]) && std::isnan(should[i]))) wrong(call, i, is[i], should[i]);
  throw std::runtime_error("wrong result: bits of a NaN have changed");
}

// The reduction of one element over the ranks, and how far rounding may lead away from it.
struct Reduced {
  long double value = 0, magnitude = 0;
};

Reduced reduced(const Call& call, const std::vector<std::vector<double>>& inputs, std::size_t element) {
  Reduced r;
  if (call.spec.op == ncclMax) {
    r.value = inputs[0][element];
    for (const auto& input : inputs) r.value = std::max<long double>(r.value, input[element]);
    return r;
  }
  for (const auto& input : inputs) {
    r.value += input[element];
    r.magnitude += std::abs(input[element]);
  }
  if (call.spec.op == ncclAvg) {
    r.value /= call.ranks;
    r.magnitude /= call.ranks;
  }
  return r;
}

}  // namespace

const char* name(Function function) {
  switch (function) {
    case Function::all_reduce:
      return "AllReduce";
    case Function::reduce_scatter:
      return "ReduceScatter";
    case Function::reduce:
      return "Reduce";
    case Function::all_gather:
      return "AllGather";
    case Function::broadcast:
      return "Broadcast";
    case Function::exchange:
      return "SendRecv";
  }
  return "unknown";
}

std::size_t Call::input_elements() const {
  return spec.function == Function::reduce_scatter ? spec.count * static_cast<std::size_t>(ranks) : spec.count;
}

std::size_t Call::output_elements() const {
  if (spec.function == Function::all_gather) return spec.count * static_cast<std::size_t>(ranks);
  return spec.function == Function::reduce && rank != spec.root ? 0 : spec.count;
}

Bytes input_of(const Call& call, int rank) {
  const std::uint64_t key = mixed(mixed(call.key, static_cast<std::uint64_t>(rank)), call.generation);
  return random_values(key, call.spec.type, call.input_elements(), call.spec.special && key % 2 == 0);
}

void check_output(const Call& call, const Bytes& output) {
  if (output.empty()) return;
  if (!reduces(call.spec.function)) {
    check_moved(call, output);
    return;
  }
  std::vector<std::vector<double>> inputs;
  for (int q = 0; q < call.ranks; q++) inputs.push_back(decoded(input_of(call, q), call.spec.type));
  const std::vector<double> is = decoded(output, call.spec.type);
  const std::size_t first =
      call.spec.function == Function::reduce_scatter ? static_cast<std::size_t>(call.rank) * call.spec.count : 0;
  const double eps = is_floating(call.spec.type) ? epsilon(call.spec.type) * (call.ranks + 2) : 0;
  for (std::size_t i = 0; i < is.size(); i++) {
    const Reduced should = reduced(call, inputs, first + i);
    const bool right = std::isfinite(should.value) ? std::abs(is[i] - should.value) <= eps * should.magnitude
                       : std::isnan(should.value)  ? std::isnan(is[i])
                                                   : is[i] == should.value;
    if (!right) wrong(call, i, is[i], static_cast<double>(should.value));
  }
}

LedgerCall ledger_entry(const Call& call, std::uint32_t replay, const Bytes* output) {
  LedgerCall entry;
  entry.mode = call.mode;
  entry.comm = call.spec.comm;
  entry.function = name(call.spec.function);
  entry.datatype = name(call.spec.type);
  entry.op = call.op;
  entry.replay = replay;
  entry.count = call.spec.count;
  entry.root = call.spec.root;
  entry.stream = call.spec.stream;
  entry.in_place = call.spec.in_place;
  entry.captured = call.captured;
  entry.input = buffer_facts(input_of(call, call.rank), call.spec.type);
  if (output == nullptr) {
    entry.has_output = Output::undone;
  } else if (!output->empty()) {
    entry.has_output = Output::known;
    entry.output = buffer_facts(*output, call.spec.type);
  }
  return entry;
}

}  // namespace gradprobe::real
