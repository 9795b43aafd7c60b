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
//   One or two ops of one kind, all or none of them tiny, need P + 192: they may be the equal layers of one step.
// - Ops before the first whole period are step 0 (none, when the sequence is periodic from its first op).
// - An op that doesn't continue the pattern is an extra: it belongs to the current step and does not advance it.
//   As many of them in a row as the period is long (at least 8) end the pattern; steps then go on growing when the old
//   pattern returns for one whole period, or a new one is established.
// - A pattern without a tiny op may be one of a step's micro-batches, or some of its layers: it gives way to a longer
//   period that explains its extras, of at most 64 micro-batches, 8 extras and among them 4 tiny ones. (More of them
//   are rather an evaluation.) A pattern with buckets and a tiny op is a whole step, and a regular visitor an extra.
// - Tiny ops alone are steps only while no other has been seen.
// - An extra that comes at every m-th repetition, before the shorter period has repeated for long enough, is part of a
//   period of m.
//
// What the sequence doesn't show can't be found in it: micro-batches that all reduce, with no other collective between
// them, are steps here, and so is each of several equal layers. Steps of more than 1024 ops aren't found. Marks
// (gradprobe.h) or GRADPROBE_OPS_PER_STEP tell.
//
// Cost of an op: a comparison while it continues the pattern (the first that doesn't makes up for up to 4096 of them);
// while a pattern is searched, a visit to each of the last 1024 ops that it equals; a few passes over 1024 ops when one
// is found.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ring_format.hpp"

namespace gradprobe {

// Different for all functions, datatypes and counts below 2^40: a bijection (times an odd number, xor with a shift) but
// for the two lowest bits, and no two of its products differ in these alone. The lowest bit says that the input is tiny
// (a loss or another scalar), the next one that it is of integers: neither is a bucket of gradients, which helps to
// find where a step ends.
constexpr std::uint64_t step_signature(Function function, Datatype datatype, std::uint64_t count) {
  std::uint64_t z = count + (std::uint64_t{static_cast<std::uint8_t>(function)} << 56) +
                    (std::uint64_t{static_cast<std::uint8_t>(datatype)} << 48);
  z *= 0x9E3779B97F4A7C15ull;
  z ^= z >> 32;
  return (z & ~std::uint64_t{3}) | (count <= kMaxRawElements ? 1u : 0u) |
         (static_cast<std::uint8_t>(datatype) < static_cast<std::uint8_t>(Datatype::f16) ? 2u : 0u);
}

constexpr bool signature_is_tiny(std::uint64_t signature) {
  return (signature & 1) != 0;
}
constexpr bool signature_is_bucket(std::uint64_t signature) {
  return (signature & 3) == 0;
}

// Where the first whole period begins: an offset in [0, period) from the first op that repeats with the period.
// `first` is the signature of the run's first op, `leading` the number of ops before its first bucket, `at(i)` the
// signature of the i-th op that repeats. Ops before it have the shape of another iteration whose tail happens to match,
// so the period is cut where iterations are cut elsewhere: at the first bucket after the step's other inputs, or as far
// before that as in the run's first iteration; else at the op that began the run.
template <typename At>
constexpr std::size_t step_phase(std::uint64_t first, std::uint64_t leading, std::size_t period, const At& at) {
  std::size_t as_first = period, times = 0;
  std::size_t first_bucket = period, cuts = 0;
  std::uint64_t previous = at(period - 1);
  for (std::size_t i = 0; i < period; i++) {
    const std::uint64_t now = at(i);
    if (now == first && times++ == 0) as_first = i;
    if (!signature_is_bucket(previous) && signature_is_bucket(now) && cuts++ == 0) first_bucket = i;
    previous = now;
  }
  if (cuts == 1) {
    std::size_t others = 0;
    while (others < leading && !signature_is_bucket(at((first_bucket + period - 1 - others) % period))) others++;
    const std::size_t as_in_first = (first_bucket + period - others) % period;
    return others == leading && at(as_in_first) == first ? as_in_first : first_bucket;
  }
  if (times > 0 && signature_is_tiny(first)) return as_first;
  if (times == 1) return as_first;
  return cuts > 0 ? first_bucket : 0;
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
      : override_(ops_per_step_override),
        history_(2 * kHistory),
        pattern_(kMaxPeriod),
        runs_(kMaxPeriod),
        newest_(kChains),
        earlier_(kHistory) {}

  // The position of the next op. Ops whose position came back unconfirmed are numbered by confirmation().locate() once
  // confirmed_now() is true.
  Position feed(std::uint64_t signature) {
    confirmed_now_ = false;
    const std::uint64_t op = fed_++;
    if (override_ != 0) {
      return {true, op / override_, static_cast<std::uint32_t>(op % override_), static_cast<std::uint32_t>(override_),
              false};
    }
    if (period_ != 0 && signature == pattern_[phase_]) [[likely]]
      return advance();
    return feed_irregular(op, signature);
  }

  // True when the last feed() established a period (also after an earlier one was lost).
  bool confirmed_now() const { return confirmed_now_; }
  const Confirmation& confirmation() const { return confirmation_; }
  std::uint64_t fed() const { return fed_; }
  std::uint32_t period() const { return override_ != 0 ? static_cast<std::uint32_t>(override_) : period_; }

 private:
  static constexpr std::size_t kHistory = 4096;  // > 3 * kMaxPeriod
  static constexpr std::uint32_t kLayerPeriod = 2;
  static constexpr std::uint32_t kLayerMatches = 192;
  static constexpr std::uint32_t kLeastMatches = 32;
  static constexpr std::uint32_t kMinExtras = 8;
  static constexpr std::uint32_t kMinReturn = 8;
  static constexpr std::uint32_t kMaxMicroBatches = 64;
  static constexpr std::uint32_t kMaxRest = 8;  // extras in a longer period, of these tiny ones:
  static constexpr std::uint32_t kMaxTinyRest = 4;
  static constexpr std::uint64_t kExtras = 64;  // remembered
  static constexpr std::uint32_t kMaxRun = 1u << 30;

  static constexpr std::size_t kChains = 1024;

  struct Run {
    std::uint64_t last = kNone;  // op up to which it goes
    std::uint32_t length = 0;    // ops in a row that equal the one a period before
  };

  struct Extra {
    std::uint64_t op = 0;
    std::uint64_t signature = 0;
    std::uint64_t regular = 0;  // ops since the extra before
    std::uint32_t phase = 0;
    bool same(const Extra& other) const {
      return signature == other.signature && regular == other.regular && phase == other.phase;
    }
  };

  // Apart from feed(), which is a few instructions without it.
  [[gnu::noinline]] Position feed_irregular(std::uint64_t op, std::uint64_t signature) {
    remember_pattern(op);
    remember(op, signature);
    return period_ == 0 ? search(op) : surprise(op, signature);
  }

  static constexpr std::uint32_t matches_needed(std::uint32_t period) { return std::max(2 * period, kLeastMatches); }

  // The history runs backwards through a doubled buffer, so that the ops before `op` lie at at(op)[1], [2], ... .
  const std::uint64_t* at(std::uint64_t op) const { return &history_[kHistory - 1 - op % kHistory]; }

  void remember(std::uint64_t op, std::uint64_t signature) {
    const std::size_t i = kHistory - 1 - op % kHistory;
    history_[i] = signature;
    history_[i + kHistory] = signature;
    std::uint64_t& newest = newest_[signature / 4 % kChains];
    earlier_[op % kHistory] = static_cast<std::uint32_t>(std::min<std::uint64_t>(op + 1 - newest, kMaxPeriod + 1));
    newest = op + 1;
    if (op == 0) first_ = signature;
    if (leading_ == op && !signature_is_bucket(signature)) leading_++;
    if (!signature_is_tiny(signature)) last_large_ = op;
    remembered_ = op + 1;
  }

  // The ops before `op` that are not remembered yet: all of them continued the pattern.
  void remember_pattern(std::uint64_t op) {
    if (remembered_ == op || period_ == 0) return;
    // A pattern is established when each of its ops has been seen: without a bucket so far, it has none.
    if (leading_ == remembered_) leading_ = op;
    const std::uint64_t from = std::max(remembered_, op - std::min<std::uint64_t>(op, kHistory));
    auto phase = static_cast<std::uint32_t>((phase_ + period_ - (op - from) % period_) % period_);
    for (std::uint64_t i = from; i < op; i++) {
      remember(i, pattern_[phase]);
      if (++phase == period_) phase = 0;
    }
  }

  Position search(std::uint64_t op) {
    if (const std::uint32_t candidate = count_matches(op); candidate != 0) return establish(op, candidate);
    if (old_pattern_returned(op)) return lock(op, period_ended_, op + 1 - ops_to_return(), next_step());
    return {};
  }

  // Counts, for every period at which `op` repeats an earlier one, how many ops in a row have done so since the search
  // began. Returns the shortest period that is enough for a step, 0 if none.
  std::uint32_t count_matches(std::uint64_t op) {
    const std::uint64_t* h = at(op);
    std::uint32_t shortest = 0;
    for (std::uint64_t back = earlier_[op % kHistory]; back <= std::min<std::uint64_t>(op, kMaxPeriod);) {
      const auto p = static_cast<std::uint32_t>(back);
      back += earlier_[(op - back) % kHistory];
      if (h[p] != h[0]) continue;  // the same chain, another signature
      Run& run = runs_[p - 1];
      run.length = run.last == op - 1 ? run.length + (run.length < kMaxRun) : 1;
      run.last = op;
      if (shortest == 0 && run.length >= matches_needed(p) && may_be_step(op, p)) shortest = p;
    }
    return shortest;
  }

  std::uint32_t matches(std::uint64_t op, std::uint32_t period) const {
    return runs_[period - 1].last == op ? runs_[period - 1].length : 0;
  }

  bool may_be_step(std::uint64_t op, std::uint32_t period) const {
    const bool only_tiny = last_large_ == kNone || op - last_large_ >= period;
    if (only_tiny && last_large_ != kNone) return false;
    if (period > kLayerPeriod) return matches(op, 1) + 1 < period && matches(op, 2) + 2 < period;
    const std::uint64_t* h = at(op);
    return signature_is_tiny(h[0]) != signature_is_tiny(h[period - 1]) || matches(op, period) >= kLayerMatches;
  }

  // The first step that no op belongs to yet.
  std::uint64_t next_step() const { return step_ + (phase_ != 0 ? 1 : 0); }

  Position lock(std::uint64_t op, std::uint32_t period, std::uint64_t first_op, std::uint64_t step_of_first) {
    confirmation_ = {first_op, period, step_of_first, step_, ever_locked_};
    confirmed_now_ = true;
    ever_locked_ = true;
    period_ = period;
    bool tiny = false, bucket = false;
    const std::uint64_t* h = at(op);
    auto back = static_cast<std::uint32_t>((op - first_op) % period);
    for (std::uint32_t i = 0; i < period; i++) {
      pattern_[i] = h[back];
      (signature_is_tiny(h[back]) ? tiny : bucket) = true;
      back = back == 0 ? period - 1 : back - 1;
    }
    may_be_part_ = !tiny;
    only_tiny_ = !bucket;
    const Position p = confirmation_.locate(op);
    step_ = p.step;
    phase_ = p.step_op;
    extras_seen_ = 0;
    return advance();
  }

  Position establish(std::uint64_t op, std::uint32_t period) {
    const std::uint64_t first_match = op + 1 - matches(op, period) - period;
    if (ever_locked_ && period_ended_ != 0)
      return lock(op, period, first_match + phase_at(op, first_match, period, pattern_[0], 0), next_step());
    if (first_match == 0) return lock(op, period, 0, 0);
    return lock(op, period, first_match + phase_at(op, first_match, period, first_, leading_),
                ever_locked_ ? next_step() : 1);
  }

  // A longer period takes over. Positions already given stay; steps keep growing.
  Position replace(std::uint64_t op, std::uint32_t period) {
    const std::uint64_t first_match = op + 1 - 2 * std::uint64_t{period};
    std::uint64_t first_op = first_match + phase_at(op, first_match, period, first_, leading_);
    first_op += (op - first_op) / period * period;
    return lock(op, period, first_op, next_step());
  }

  std::uint64_t phase_at(std::uint64_t op, std::uint64_t first_match, std::uint32_t period, std::uint64_t first,
                         std::uint64_t leading) const {
    const std::uint64_t* h = at(op);
    const auto back = static_cast<std::size_t>((op - first_match) % period);
    return step_phase(first, leading, period,
                      [&](std::size_t i) { return h[back >= i ? back - i : back + period - i]; });
  }

  // Ops that must repeat the old pattern before it counts as returned: one whole period, several of a very short one.
  std::uint32_t ops_to_return() const { return (kMinReturn + period_ended_ - 1) / period_ended_ * period_ended_; }

  bool old_pattern_returned(std::uint64_t op) const {
    if (period_ended_ == 0 || op - unlocked_at_ < ops_to_return()) return false;
    const std::uint64_t* h = at(op);
    std::uint32_t i = 0, phase = period_ended_;
    for (; i < ops_to_return(); i++) {
      phase = phase == 0 ? period_ended_ - 1 : phase - 1;
      if (h[i] != pattern_[phase]) return false;
    }
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

  // An op that does not continue the pattern.
  Position surprise(std::uint64_t op, std::uint64_t signature) {
    if (only_tiny_ && !signature_is_tiny(signature)) {
      unlock(op);
      period_ended_ = 0;  // it was no step: it needn't return
      return {};
    }
    if (may_be_part_) {
      const std::uint64_t before = extras_seen_ == 0 ? op : extra_before(0).op + 1;
      extras_[extras_seen_++ % kExtras] = {op, signature, op - before, phase_};
      if (const std::uint32_t longer = longer_period(); longer != 0) return replace(op, longer);
    }
    const Position p{true, step_, phase_, period_, true};
    if (++mismatches_ >= std::max(period_, kMinExtras)) unlock(op);
    return p;
  }

  void unlock(std::uint64_t op) {
    period_ended_ = period_;
    period_ = 0;
    unlocked_at_ = op;
    mismatches_ = 0;
  }

  const Extra& extra_before(std::uint64_t n) const { return extras_[(extras_seen_ - 1 - n) % kExtras]; }

  // The shortest period of a whole number of patterns and some extras that has repeated up to the newest extra; 0 if
  // none. Between extras the ops continue the pattern, so the extras, their phases and distances are all to compare.
  std::uint32_t longer_period() const {
    // The first extra's distance is not known.
    const std::uint64_t whole = std::min(extras_seen_, kExtras) - 1;
    for (std::uint64_t rest = 1; rest <= kMaxRest && 2 * rest <= whole; rest++) {
      const std::uint64_t period = extra_before(0).op - extra_before(rest).op;
      std::uint64_t equal = 0;
      while (equal + rest < whole && extra_before(equal).same(extra_before(equal + rest))) equal++;
      if (equal < rest || extra_before(0).op - extra_before(equal).op < kLeastMatches) continue;
      std::uint64_t tiny = 0;
      for (std::uint64_t i = 0; i < rest; i++) tiny += signature_is_tiny(extra_before(i).signature) ? 1u : 0u;
      const std::uint64_t patterns = (period - rest) / period_;
      const bool several = (period - rest) % period_ == 0 && patterns >= 2;
      const bool micro_batches = period_ <= kLayerPeriod || patterns <= kMaxMicroBatches;
      if (several && micro_batches && tiny <= kMaxTinyRest && period <= kMaxPeriod)
        return static_cast<std::uint32_t>(period);
    }
    return 0;
  }

  std::uint64_t override_;
  std::vector<std::uint64_t> history_;
  std::vector<std::uint64_t> pattern_;
  std::vector<Run> runs_;  // by period - 1
  // Ops whose signatures share some bits are a chain: the newest of each (its number + 1, 0: none), and by op how far
  // it is to the one before.
  std::vector<std::uint64_t> newest_;
  std::vector<std::uint32_t> earlier_;
  std::array<Extra, kExtras> extras_{};
  std::uint64_t extras_seen_ = 0;  // since the pattern was established
  std::uint64_t fed_ = 0;
  std::uint64_t remembered_ = 0;  // ops in the history
  std::uint64_t first_ = 0;
  std::uint64_t leading_ = 0;
  std::uint64_t last_large_ = kNone;
  std::uint64_t step_ = 0;
  std::uint64_t unlocked_at_ = 0;
  std::uint32_t period_ = 0;
  std::uint32_t period_ended_ = 0;
  std::uint32_t phase_ = 0;
  std::uint32_t mismatches_ = 0;
  bool ever_locked_ = false;
  bool may_be_part_ = false;
  bool only_tiny_ = false;
  bool confirmed_now_ = false;
  Confirmation confirmation_;
};

}  // namespace gradprobe
