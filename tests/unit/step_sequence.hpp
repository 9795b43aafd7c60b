// Sequences of collectives written as letters: 'L' is a loss of one element, 'M' a metric of two, every other letter a
// bucket of its own size.
#pragma once

#include <gradprobe/step_detector.hpp>

#include <string>
#include <vector>

namespace gradprobe::test {

inline std::uint64_t count_of(char letter) {
  return letter == 'L' ? 1 : letter == 'M' ? 2 : 1000 + static_cast<std::uint64_t>(static_cast<unsigned char>(letter));
}
inline std::uint64_t signature_of(char letter) {
  return step_signature(Function::all_reduce, Datatype::f32, count_of(letter));
}

inline std::string times(const std::string& pattern, int n) {
  std::string all;
  for (int i = 0; i < n; i++) all += pattern;
  return all;
}

struct Numbered {
  std::uint64_t step = kNone;
  std::uint32_t step_op = 0;
  bool extra = false;
  bool online = false;  // known when the op was fed, not only at the confirmation
};

// Feeds all ops and numbers the pending ones at each confirmation, as the collector does.
inline std::vector<Numbered> number_all(StepDetector& detector, const std::vector<std::uint64_t>& signatures) {
  std::vector<Numbered> ops;
  for (const std::uint64_t signature : signatures) {
    const StepDetector::Position p = detector.feed(signature);
    ops.push_back({p.step, p.step_op, p.extra, p.confirmed});
    if (!detector.confirmed_now()) continue;
    for (std::size_t i = 0; i < ops.size(); i++) {
      if (ops[i].step != kNone) continue;
      const StepDetector::Position late = detector.confirmation().locate(i);
      ops[i] = {late.step, late.step_op, late.extra, false};
    }
  }
  return ops;
}

inline std::vector<std::uint64_t> signatures_of(const std::string& letters) {
  std::vector<std::uint64_t> signatures;
  for (const char letter : letters) signatures.push_back(signature_of(letter));
  return signatures;
}

inline std::vector<Numbered> number_all(const std::string& letters, std::uint64_t ops_per_step = 0) {
  StepDetector detector(ops_per_step);
  return number_all(detector, signatures_of(letters));
}

}  // namespace gradprobe::test
