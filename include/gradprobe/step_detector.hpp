// Finds optimizer steps in the sequence of collectives of one communicator. The result depends on that sequence alone,
// so every rank, and every reader of a ring, comes to the same steps. Offline use on records: step_assignment.hpp.
//
// A step is one period of the sequence of signatures (function, datatype, count):
//
//   op:      0  1  2 | 3  4  5  6 | 7  8  9 10 | 11 ...
//            X  Y  L | A  B  C  L | A  B  C  L | A        the first iteration differs (rebuilt buckets)
//   step:    0  0  0 | 1  1  1  1 | 2  2  2  2 | 3
//
// - A period P (1 ... 1024) is established when the last max(3 P, P + 32) ops repeat with it and no shorter one does.
// - Ops before the first whole period are step 0 (none, when the sequence is periodic from its first op).
// - An op that doesn't continue the pattern is an extra: it belongs to the current step and does not advance it.
//   As many of them in a row as the period is long (at least 4) end the pattern; steps then go on growing when the old
//   pattern returns for one whole period, or a new one is established.
// - A pattern of one or two ops without a tiny one may be the layers of one step rather than steps (equal buckets of a
//   sharded model): it gives way to a longer period that also explains what the short one calls extra.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ring_format.hpp"

namespace gradprobe {

// The lowest bit says that the input is tiny (a loss or another scalar), which helps to find where a step ends.
constexpr std::uint64_t step_signature(Function function, Datatype datatype, std::uint64_t count) {
  std::uint64_t z = count * 0x9E3779B97F4A7C15ull + (std::uint64_t{static_cast<std::uint8_t>(function)} << 8) +
                    std::uint64_t{static_cast<std::uint8_t>(datatype)};
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return (z & ~std::uint64_t{1}) | (count <= kMaxRawElements ? 1u : 0u);
}

constexpr bool signature_is_tiny(std::uint64_t signature) {
  return (signature & 1) != 0;
}

// Where the first whole period begins: an offset in [0, period) from the first op that repeats with the period.
// `first` are the signatures of the run's (or the pattern's) first op, `period_ops[i]` the signature of the i-th op
// that repeats. Ops before it have the shape of another iteration whose tail happens to match, so the period is cut
// where iterations are cut elsewhere: at the op that began the run, else after the step's tiny inputs.
template <typename At>
constexpr std::size_t step_phase(std::uint64_t first, std::size_t period, const At& at) {
  std::size_t as_first = period, times = 0;
  std::size_t after_tiny = period, cuts = 0;
  for (std::size_t i = 0; i < period; i++) {
    if (at(i) == first && times++ == 0) as_first = i;
    const std::uint64_t previous = at((i + period - 1) % period);
    if (signature_is_tiny(previous) && !signature_is_tiny(at(i)) && cuts++ == 0) after_tiny = i;
  }
  if (times > 0 && signature_is_tiny(first)) return as_first;
  if (cuts == 1) return after_tiny;
  if (times == 1) return as_first;
  return cuts > 0 ? after_tiny : 0;
}

class StepDetector {
 public:
  static constexpr std::uint32_t kMaxPeriod = 1024;

  struct Position {
    bool confirmed = false;  // false: the fields below are not known yet
    std::uint64_t step = kNone;
    std::uint32_t step_op = 0;
    std::uint32_t ops_per_step = 0;
    bool extra = false;
  };

  // How to number ops that were fed before the period was established.
  struct Confirmation {
    std::uint64_t first_periodic_op = 0;  // ordinal of feed() calls, from 0; first op of a whole period
    std::uint32_t period = 0;
    std::uint64_t step_of_first = 0;  // step of first_periodic_op
    std::uint64_t step_before = 0;    // step of the ops before it that have none yet
    bool again = false;               // a period had been established before: those ops are extras

    // Position of op `op` <= the op that confirmed.
    Position locate(std::uint64_t op) const {
      if (op < first_periodic_op) return {true, step_before, 0, period, again};
      Position p{true, step_of_first, 0, period, false};
      p.step += (op - first_periodic_op) / period;
      p.step_op = static_cast<std::uint32_t>((op - first_periodic_op) % period);
      return p;
    }
  };

  explicit StepDetector(std::uint64_t ops_per_step_override = 0)
      : override_(ops_per_step_override), history_(2 * kHistory), pattern_(kMaxPeriod) {}

  // The position of the next op. Ops whose position came back unconfirmed are numbered by confirmation().locate() once
  // confirmed_now() is true.
  Position feed(std::uint64_t signature) {
    confirmed_now_ = false;
    const std::uint64_t op = fed_++;
    if (override_ != 0) {
      return {true, op / override_, static_cast<std::uint32_t>(op % override_), static_cast<std::uint32_t>(override_),
              false};
    }
    if (op == 0) first_ = signature;
    remember(op, signature);
    const std::uint32_t candidate = count_matches(op);
    if (period_ == 0) {
      if (candidate != 0) return establish(op, candidate);
      if (old_pattern_returned(op)) return lock(op, period_ended_, op + 1 - ops_to_return(), next_step());
      return {};
    }
    const bool expected = signature == pattern_[phase_];
    if (!expected) last_extra_ = op;
    if (may_be_layers_ && candidate > period_ && last_extra_ != kNone &&
        op - last_extra_ < matches_[candidate - 1] + candidate) {
      return replace(op, candidate);
    }
    return expected ? advance() : extra(op);
  }

  // True when the last feed() established a period (also after an earlier one was lost).
  bool confirmed_now() const { return confirmed_now_; }
  const Confirmation& confirmation() const { return confirmation_; }
  std::uint64_t fed() const { return fed_; }
  std::uint32_t period() const { return override_ != 0 ? static_cast<std::uint32_t>(override_) : period_; }

 private:
  static constexpr std::size_t kHistory = 4096;  // > 3 * kMaxPeriod
  static constexpr std::uint32_t kLayerPeriod = 2;
  static constexpr std::uint32_t kMinExtras = 4;
  static constexpr std::uint32_t kMinReturn = 8;
  static constexpr std::uint32_t kMaxRun = 1u << 30;

  static constexpr std::uint32_t matches_needed(std::uint32_t period) { return std::max(2 * period, 32u); }

  // The history runs backwards through a doubled buffer, so that the ops before `op` lie at at(op)[1], [2], ... .
  const std::uint64_t* at(std::uint64_t op) const { return &history_[kHistory - 1 - op % kHistory]; }

  void remember(std::uint64_t op, std::uint64_t signature) {
    const std::size_t i = kHistory - 1 - op % kHistory;
    history_[i] = signature;
    history_[i + kHistory] = signature;
  }

  // Counts for every period how many ops in a row, up to this one, equal the op one period before. Returns the shortest
  // period with enough of them, 0 if none.
  std::uint32_t count_matches(std::uint64_t op) {
    const std::uint64_t* h = at(op);
    const std::uint64_t signature = h[0];
    const auto periods = static_cast<std::uint32_t>(std::min<std::uint64_t>(op, kMaxPeriod));
    bool enough = false;
    for (std::uint32_t p = 1; p <= periods; p++) {
      const std::uint32_t run = h[p] == signature ? matches_[p - 1] + (matches_[p - 1] < kMaxRun) : 0;
      matches_[p - 1] = run;
      enough |= run >= matches_needed(p);
    }
    if (!enough) return 0;
    std::uint32_t p = 1;
    while (matches_[p - 1] < matches_needed(p)) p++;
    return p;
  }

  // The first step that no op belongs to yet.
  std::uint64_t next_step() const { return step_ + (phase_ != 0 ? 1 : 0); }

  Position lock(std::uint64_t op, std::uint32_t period, std::uint64_t first_op, std::uint64_t step_of_first) {
    confirmation_ = {first_op, period, step_of_first, step_, ever_locked_};
    confirmed_now_ = true;
    ever_locked_ = true;
    period_ = period;
    for (std::uint32_t i = 0; i < period; i++) pattern_[i] = at(op)[(op - first_op + period - i) % period];
    may_be_layers_ = period <= kLayerPeriod && std::none_of(pattern_.begin(), pattern_.begin() + period,
                                                            [](std::uint64_t s) { return signature_is_tiny(s); });
    const Position p = confirmation_.locate(op);
    step_ = p.step;
    phase_ = p.step_op;
    last_extra_ = kNone;
    return advance();
  }

  Position establish(std::uint64_t op, std::uint32_t period) {
    const std::uint64_t first_match = op + 1 - matches_[period - 1] - period;
    if (ever_locked_)
      return lock(op, period, first_match + phase_at(op, first_match, period, pattern_[0]), next_step());
    if (first_match == 0) return lock(op, period, 0, 0);
    return lock(op, period, first_match + phase_at(op, first_match, period, first_), 1);
  }

  // A longer period takes over. Positions already given stay; steps keep growing.
  Position replace(std::uint64_t op, std::uint32_t period) {
    const std::uint64_t first_match = op + 1 - matches_[period - 1] - period;
    std::uint64_t first_op = first_match;
    if (first_match != 0) first_op += phase_at(op, first_match, period, first_);
    first_op += (op - first_op) / period * period;
    return lock(op, period, first_op, next_step());
  }

  std::uint64_t phase_at(std::uint64_t op, std::uint64_t first_match, std::uint32_t period, std::uint64_t first) const {
    const std::uint64_t* h = at(op);
    return step_phase(first, period, [&](std::size_t i) { return h[(op - first_match - i) % period]; });
  }

  // Ops that must repeat the old pattern before it counts as returned: one whole period, several of a very short one.
  std::uint32_t ops_to_return() const { return (kMinReturn + period_ended_ - 1) / period_ended_ * period_ended_; }

  bool old_pattern_returned(std::uint64_t op) const {
    if (!ever_locked_ || op - unlocked_at_ < ops_to_return()) return false;
    const std::uint64_t* h = at(op);
    for (std::uint32_t i = 0; i < ops_to_return(); i++)
      if (h[i] != pattern_[period_ended_ - 1 - i % period_ended_]) return false;
    return true;
  }

  Position advance() {
    const Position p{true, step_, phase_, period_, false};
    mismatches_ = 0;
    if (++phase_ == period_) {
      phase_ = 0;
      step_++;
    }
    return p;
  }

  Position extra(std::uint64_t op) {
    const Position p{true, step_, phase_, period_, true};
    if (++mismatches_ >= std::max(period_, kMinExtras)) {
      period_ended_ = period_;
      period_ = 0;
      unlocked_at_ = op;
    }
    return p;
  }

  std::uint64_t override_;
  std::vector<std::uint64_t> history_;
  std::vector<std::uint64_t> pattern_;
  std::array<std::uint32_t, kMaxPeriod> matches_{};
  std::uint64_t fed_ = 0;
  std::uint64_t first_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t unlocked_at_ = 0;
  std::uint64_t last_extra_ = kNone;
  std::uint32_t period_ = 0;
  std::uint32_t period_ended_ = 0;
  std::uint32_t phase_ = 0;
  std::uint32_t mismatches_ = 0;
  bool ever_locked_ = false;
  bool may_be_layers_ = false;
  bool confirmed_now_ = false;
  Confirmation confirmation_;
};

}  // namespace gradprobe
