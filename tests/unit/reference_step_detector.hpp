// The rules of step_detector.hpp written down plainly: the whole sequence is kept, and every run of equal ops is
// counted anew from it. Slow, for comparison.
#pragma once

#include <gradprobe/step_detector.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradprobe::test {

class ReferenceStepDetector {
 public:
  StepDetector::Position feed(std::uint64_t signature) {
    confirmed_now_ = false;
    ops_.push_back(signature);
    if (pattern_.empty()) return search();
    if (signature == pattern_[phase_]) return regular();
    const bool only_tiny = std::all_of(pattern_.begin(), pattern_.end(), signature_is_tiny);
    if (only_tiny && !signature_is_tiny(signature)) {
      end_pattern();
      ended_.clear();
      return {};
    }
    const bool no_tiny = std::none_of(pattern_.begin(), pattern_.end(), signature_is_tiny);
    extras_.push_back({last(), phase_});
    if (no_tiny)
      if (const std::size_t longer = longer_period(); longer != 0) return take_over(longer);
    const StepDetector::Position p{true, step_, phase32(), period(), true};
    extras_in_a_row_++;
    if (extras_in_a_row_ >= std::max<std::size_t>(pattern_.size(), 8)) end_pattern();
    return p;
  }
  bool confirmed_now() const { return confirmed_now_; }
  const StepDetector::Confirmation& confirmation() const { return confirmation_; }
  std::uint32_t period() const { return static_cast<std::uint32_t>(pattern_.size()); }

 private:
  struct ExtraOp {
    std::size_t op, phase;
  };

  std::size_t last() const { return ops_.size() - 1; }
  std::uint32_t phase32() const { return static_cast<std::uint32_t>(phase_); }

  // Ops up to the last one, not before `from`, that equal the op `period` before, at most `limit`.
  std::size_t run(std::size_t period, std::size_t from, std::size_t limit) const {
    std::size_t n = 0;
    while (n < limit && n < ops_.size() && last() - n >= from && last() - n >= period &&
           ops_[last() - n] == ops_[last() - n - period])
      n++;
    return n;
  }

  bool large_among_last(std::size_t n) const {
    return std::any_of(ops_.end() - static_cast<std::ptrdiff_t>(n), ops_.end(),
                       [](std::uint64_t s) { return !signature_is_tiny(s); });
  }
  bool tiny_among_last(std::size_t n) const {
    return std::any_of(ops_.end() - static_cast<std::ptrdiff_t>(n), ops_.end(), signature_is_tiny);
  }

  StepDetector::Position search() {
    for (std::size_t p = 1; p <= std::min<std::size_t>(last(), StepDetector::kMaxPeriod); p++) {
      std::size_t needed = std::max<std::size_t>(2 * p, 32);
      if (p <= 2 && tiny_among_last(p) != large_among_last(p)) needed = 192;
      if (run(p, search_from_, needed) < needed) continue;
      if (!large_among_last(p) && large_among_last(ops_.size())) continue;
      if (p > 2) {
        // Nothing but equal ops, or pairs of ops, is no pattern of its own.
        if (run(1, search_from_, p - 1) == p - 1 || run(2, search_from_, p - 2) == p - 2) continue;
      }
      const std::size_t first = ops_.size() - p - run(p, search_from_, ops_.size());
      std::size_t begin = first;
      std::uint64_t step = next_step();
      if (!ended_.empty()) {
        begin += phase_in(first, p, old_first_, 0);
      } else if (first > 0) {
        begin += phase_in(first, p, ops_[0], leading());
        if (!ever_) step = 1;
      }
      return begin_pattern(begin, p, step);
    }
    if (!ended_.empty()) {
      const std::size_t need = (8 + ended_.size() - 1) / ended_.size() * ended_.size();
      if (ops_.size() - search_from_ >= need) {
        bool returned = true;
        for (std::size_t i = 0; i < need; i++)
          returned = returned && ops_[ops_.size() - need + i] == ended_[i % ended_.size()];
        if (returned) return begin_pattern(ops_.size() - need, ended_.size(), next_step());
      }
    }
    return {};
  }

  std::uint64_t leading() const {
    return static_cast<std::uint64_t>(std::find_if(ops_.begin(), ops_.end(), signature_is_bucket) - ops_.begin());
  }

  // The signature of the i-th op of the period that begins at `first`, from the newest ops.
  std::size_t phase_in(std::size_t first, std::size_t period, std::uint64_t run_first, std::uint64_t leading) const {
    return step_phase(run_first, leading, period, [&](std::size_t i) {
      std::size_t op = last();
      while ((op - first) % period != i) op--;
      return ops_[op];
    });
  }

  std::size_t longer_period() const {
    for (std::size_t rest = 1; rest <= 8; rest++) {
      // Extras from the second on, whose distance to the one before is known, and no more than the last 64.
      const std::size_t oldest = std::max<std::size_t>(1, extras_.size() < 64 ? 1 : extras_.size() - 63);
      if (extras_.size() < oldest + 2 * rest) break;
      const auto same = [&](std::size_t a, std::size_t b) {
        return ops_[extras_[a].op] == ops_[extras_[b].op] && extras_[a].phase == extras_[b].phase &&
               extras_[a].op - extras_[a - 1].op == extras_[b].op - extras_[b - 1].op;
      };
      std::size_t i = extras_.size() - 1;
      while (i >= oldest + rest && same(i, i - rest)) i--;
      const std::size_t equal = extras_.size() - 1 - i;
      if (equal < rest || last() - extras_[i].op < 32) continue;
      const std::size_t period = last() - extras_[extras_.size() - 1 - rest].op;
      std::size_t tiny = 0;
      for (std::size_t e = extras_.size() - rest; e < extras_.size(); e++)
        if (signature_is_tiny(ops_[extras_[e].op])) tiny++;
      const std::size_t regular = period - rest;
      if (regular % pattern_.size() != 0 || regular < 2 * pattern_.size() || tiny > 4) continue;
      if (period > StepDetector::kMaxPeriod || (pattern_.size() > 2 && regular > 64 * pattern_.size())) continue;
      return period;
    }
    return 0;
  }

  StepDetector::Position take_over(std::size_t period) {
    const std::size_t first = ops_.size() - 2 * period;
    std::size_t begin = first + phase_in(first, period, ops_[0], leading());
    while (begin + period <= last()) begin += period;
    return begin_pattern(begin, period, next_step());
  }

  std::uint64_t next_step() const { return phase_ != 0 ? step_ + 1 : step_; }

  StepDetector::Position begin_pattern(std::size_t begin, std::size_t period, std::uint64_t step) {
    confirmation_ = {begin, static_cast<std::uint32_t>(period), step, step_, ever_};
    confirmed_now_ = true;
    ever_ = true;
    pattern_.assign(period, 0);
    for (std::size_t op = ops_.size() - period; op < ops_.size(); op++)
      pattern_[(op + period * (begin / period + 1) - begin) % period] = ops_[op];
    old_first_ = pattern_[0];
    const StepDetector::Position p = confirmation_.locate(last());
    step_ = p.step;
    phase_ = p.step_op;
    extras_.clear();
    return regular();
  }

  StepDetector::Position regular() {
    const StepDetector::Position p{true, step_, phase32(), period(), false};
    extras_in_a_row_ = 0;
    if (++phase_ == pattern_.size()) {
      phase_ = 0;
      step_++;
    }
    return p;
  }

  void end_pattern() {
    ended_ = pattern_;
    pattern_.clear();
    extras_in_a_row_ = 0;
    search_from_ = ops_.size();
  }

  std::vector<std::uint64_t> ops_, pattern_, ended_;
  std::vector<ExtraOp> extras_;
  std::size_t phase_ = 0, extras_in_a_row_ = 0, search_from_ = 0;
  std::uint64_t step_ = 0, old_first_ = 0;
  bool ever_ = false, confirmed_now_ = false;
  StepDetector::Confirmation confirmation_;
};

}  // namespace gradprobe::test
