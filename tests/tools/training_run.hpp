// Rings of a made-up training run, with the gradients that they were made from.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "reference_sketch.hpp"
#include "run_tool.hpp"
#include "synthetic_ring.hpp"

namespace gradprobe::test {

struct TrainingSpec {
  std::uint64_t comm_id = 0xC0FFEE;
  std::uint32_t ranks = 4;
  std::uint32_t claimed_ranks = 0;  // 0: as many as there are
  std::uint64_t steps = 6;
  std::size_t buckets = 2;
  double common = 0.5;     // share of the gradient that all ranks have in common
  bool identical = false;  // all ranks compute the same
  bool confirmed = true;   // records carry their steps
  std::uint64_t start_time_ns = 1'700'000'000'000'000'000;
  std::vector<double> scale;      // of each rank's gradient; empty: 1
  double rounding = 0;            // relative error of each element, drawn anew for each rank
  std::uint64_t key_of_rank = 0;  // added to the sketch key once per rank
  bool results = false;           // also record what each all-reduce left on the rank
  std::size_t results_after = 0;  // ops that are recorded between an input and its result
};

// A step has `buckets` buckets of 1500, 750, ... elements and a loss.
class TrainingRun {
 public:
  explicit TrainingRun(const TrainingSpec& spec) : spec_(spec) {
    std::mt19937_64 random(spec.comm_id);
    std::normal_distribution<double> gauss;
    const auto period = static_cast<std::uint32_t>(spec.buckets + 1);
    for (std::uint32_t r = 0; r < spec.ranks; r++) {
      RingSpec ring;
      ring.comm_id = spec.comm_id;
      ring.rank = r;
      ring.nranks = spec.claimed_ranks == 0 ? spec.ranks : spec.claimed_ranks;
      ring.capacity = spec.steps * period * (spec.results ? 2 : 1) + 4;
      ring.start_time_ns = spec.start_time_ns;
      ring.pid += r;
      rings_.emplace_back(ring);
      rings_.back().set_heartbeat(spec.start_time_ns + 1000);
    }
    gradients_.resize(spec.steps);
    losses_.resize(spec.steps);
    for (std::uint64_t s = 0; s < spec.steps; s++) {
      gradients_[s].resize(spec.ranks);
      for (std::size_t b = 0; b < spec.buckets; b++) {
        const std::size_t n = 1500 >> b;
        std::vector<double> shared(n);
        for (double& v : shared) v = gauss(random);
        for (std::uint32_t r = 0; r < spec.ranks; r++) {
          std::vector<double> x(n);
          for (std::size_t i = 0; i < n; i++) {
            x[i] = spec.identical ? shared[i]
                                  : std::sqrt(spec.common) * shared[i] + std::sqrt(1 - spec.common) * gauss(random);
          }
          if (!spec.scale.empty())
            for (double& v : x) v *= spec.scale[r];
          if (spec.rounding > 0)
            for (double& v : x) v *= 1 + spec.rounding * gauss(random);
          gradients_[s][r].push_back(std::move(x));
        }
      }
      for (std::uint32_t r = 0; r < spec.ranks; r++) {
        losses_[s].push_back(2.0 / static_cast<double>(s + 1) + (spec.identical ? 0 : 0.125 * r));
      }
    }
  }

  // Changes records on their way into the rings.
  std::function<void(std::uint32_t rank, RecordHead& head)> change = [](std::uint32_t, RecordHead&) {};
  // Changes an all-reduce's result on one rank before it is recorded, and its record.
  std::function<void(std::uint32_t rank, std::uint64_t op, std::vector<float>& result)> damage =
      [](std::uint32_t, std::uint64_t, std::vector<float>&) {};
  std::function<void(std::uint32_t rank, RecordHead& head)> change_result = [](std::uint32_t, RecordHead&) {};
  // Results that are recorded.
  std::function<bool(std::uint32_t rank, std::uint64_t op)> has_result = [](std::uint32_t, std::uint64_t) {
    return true;
  };
  // Steps that a rank gets to write.
  std::function<std::uint64_t(std::uint32_t rank)> steps_of = [this](std::uint32_t) { return spec_.steps; };

  void write(const TemporaryFolder& folder, const std::string& prefix = "", bool finalize = true) {
    const auto period = static_cast<std::uint32_t>(spec_.buckets + 1);
    for (std::uint32_t r = 0; r < spec_.ranks; r++) {
      SyntheticRing& ring = rings_[r];
      std::deque<RecordHead> results;
      for (std::uint64_t s = 0; s < steps_of(r); s++) {
        for (std::uint32_t b = 0; b < period; b++) {
          const std::uint64_t op = s * period + b;
          if (b == spec_.buckets) {
            RecordHead loss = make_scalar(op, step(s), b, ops(), static_cast<float>(losses_[s][r]));
            change(r, loss);
            ring.append(loss);
            add_result(r, s, loss, results);
            continue;
          }
          const std::vector<double>& x = gradients_[s][r][b];
          RecordHead head = make_collective(op, step(s), b, ops(), x.size(), squares(x));
          head.collective.sketch_key += spec_.key_of_rank * r;
          change(r, head);
          const ReferenceSketch sketch(head.collective.sketch_key);
          ring.append(head, head.missed == 0 ? sketch(x, 256) : std::vector<float>());
          add_result(r, s, head, results);
        }
      }
      for (const RecordHead& result : results) ring.append(result);
      if (finalize) ring.finalize();
      ring.save(path(folder, r, prefix));
    }
  }

  std::string path(const TemporaryFolder& folder, std::uint32_t rank, const std::string& prefix = "") const {
    return folder / (prefix + std::to_string(spec_.comm_id) + "-r" + std::to_string(rank) + ".ring");
  }
  SyntheticRing& ring(std::uint32_t rank) { return rings_[rank]; }

  double loss(std::uint64_t step, std::uint32_t rank) const {
    return static_cast<double>(static_cast<float>(losses_[step][rank]));
  }
  double norm(std::uint64_t step, std::uint32_t rank) const {
    double sum = 0;
    for (const auto& x : gradients_[step][rank]) sum += squares(x);
    return std::sqrt(sum);
  }
  double cosine(std::uint64_t step, std::uint32_t a, std::uint32_t b) const {
    double sum = 0;
    for (std::size_t k = 0; k < spec_.buckets; k++) {
      const auto &x = gradients_[step][a][k], &y = gradients_[step][b][k];
      for (std::size_t i = 0; i < x.size(); i++) sum += x[i] * y[i];
    }
    return sum / (norm(step, a) * norm(step, b));
  }

 private:
  static double squares(const std::vector<double>& x) {
    double sum = 0;
    for (const double v : x) sum += v * v;
    return sum;
  }
  // The input's result takes its place behind those that wait, the oldest of which is written when it has waited
  // enough.
  void add_result(std::uint32_t rank, std::uint64_t s, const RecordHead& input, std::deque<RecordHead>& waiting) {
    if (!spec_.results || !has_result(rank, input.op)) return;
    const std::size_t bucket = input.op % (spec_.buckets + 1);
    std::vector<float> reduced;
    if (bucket == spec_.buckets) {
      float sum = 0;
      for (const double loss : losses_[s]) sum += static_cast<float>(loss);
      reduced.push_back(sum);
    } else {
      reduced.assign(gradients_[s][0][bucket].size(), 0);
      for (const auto& rank_gradients : gradients_[s])
        for (std::size_t i = 0; i < reduced.size(); i++) reduced[i] += static_cast<float>(rank_gradients[bucket][i]);
    }
    damage(rank, input.op, reduced);
    RecordHead head = make_result(input, fingerprint_of(reduced.data(), 4 * reduced.size()));
    head.collective.sum_squares = squares({reduced.begin(), reduced.end()});
    if (head.collective.raw_count > 0) std::memcpy(head.collective.raw, reduced.data(), 4 * reduced.size());
    change_result(rank, head);
    waiting.push_back(head);
    if (waiting.size() <= spec_.results_after) return;
    rings_[rank].append(waiting.front());
    waiting.pop_front();
  }

  std::uint64_t step(std::uint64_t s) const { return spec_.confirmed ? s : kNone; }
  std::uint32_t ops() const { return spec_.confirmed ? static_cast<std::uint32_t>(spec_.buckets + 1) : 0; }

  TrainingSpec spec_;
  std::vector<SyntheticRing> rings_;
  std::vector<std::vector<std::vector<std::vector<double>>>> gradients_;  // [step][rank][bucket][element]
  std::vector<std::vector<double>> losses_;                               // [step][rank]
};

}  // namespace gradprobe::test
