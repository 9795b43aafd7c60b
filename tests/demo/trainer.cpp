#include "trainer.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "communicator.hpp"
#include "digits.hpp"
#include "kernels.hpp"
#include "network.hpp"
#include "sampling.hpp"
#include "truth.hpp"

namespace gradprobe::demo {
namespace {

// Steps that the host may be ahead of the device, as in any training loop that doesn't read its loss at once.
constexpr int kAhead = 2;

class Progress {
 public:
  Progress(const Options& options, int rank)
      : name_(demo::name(options.setting)), steps_(options.steps), shown_(rank == 0 && !options.quiet) {}
  void step_done(int step, double loss) {
    if (!shown_) return;
    const int done = step + 1;
    if (terminal_) {
      constexpr int kBar = 30;
      const int filled = done * kBar / steps_;
      fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] step {}/{}  loss {:.3f}{}", name_, "", filled, "", kBar - filled, done,
                 steps_, loss, done == steps_ ? "\n" : "");
      std::fflush(stderr);
    } else if (done * 10 / steps_ > step * 10 / steps_) {
      fmt::print(stderr, "{}: step {}/{}  loss {:.3f}\n", name_, done, steps_, loss);
    }
  }

 private:
  const char* name_;
  int steps_;
  bool shown_;
  bool terminal_ = isatty(STDERR_FILENO) == 1;
};

std::uint64_t fnv1a(const void* data, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3ull;
  return hash;
}

class Trainer {
 public:
  Trainer(const Options& options, int rank, SharedState& shared)
      : options_(options),
        rank_(rank),
        shared_(shared),
        digits_(read_digits(options.data)),
        context_(rank % device_count()),
        layout_(demo_layout()),
        network_(kernels_, layout_, digits_, options.batch, options.dropout),
        losses_(pinned_memory(sizeof(float) * static_cast<std::size_t>(options.steps))),
        progress_(options, rank),
        communicator_(shared, options.ranks, rank, options.timeout_s) {
    if (options.type != BucketType::f32) half_buckets_ = device_memory(2 * static_cast<std::size_t>(layout_.total));
    if (!options.truth.empty()) {
      truth_ = std::make_unique<TruthWriter>(options.truth, rank, options.truth_buckets);
      for (PinnedMemory& copy : truth_copies_) {
        copy = pinned_memory(sizeof(float) * (static_cast<std::size_t>(layout_.total) + 1));
      }
    }
    std::generate_n(std::back_inserter(ready_), layout_.buckets.size(), make_event);
    if (digits_.count() < options.batch) {
      throw std::runtime_error(
          fmt::format("--batch {}: {} has only {} images", options.batch, options.data, digits_.count()));
    }
  }

  void train() {
    network_.set_order(compute_.get(), image_order(options_, rank_, digits_.count()));
    if (rank_ == 0) {
      const std::vector<float> weights = initial_weights(layout_, options_.seed);
      check(cuMemcpyHtoD(network_.weights(), weights.data(), sizeof(float) * weights.size()), "cuMemcpyHtoD");
    }
    communicator_.broadcast(network_.weights(), static_cast<std::size_t>(layout_.total), comm_.get());
    check(cuEventRecord(reduced_.get(), comm_.get()), "cuEventRecord");
    check(cuStreamWaitEvent(compute_.get(), reduced_.get(), 0), "cuStreamWaitEvent");
    for (int step = 0; step < options_.steps; ++step) {
      shared_.step[rank_] = step;
      if (step >= kAhead) finish_step(step - kAhead);
      if (options_.kill.rank == rank_ && options_.kill.step == step) std::raise(SIGKILL);
      enqueue_step(step);
    }
    for (int step = std::max(0, options_.steps - kAhead); step < options_.steps; ++step) finish_step(step);
    save_weights();
    communicator_.finish();
  }

 private:
  static std::size_t slot(int step) { return static_cast<std::size_t>(step % kAhead); }

  void enqueue_step(int step) {
    first_op_[slot(step)] = communicator_.calls();
    network_.forward(compute_.get(), step, dropout_key(options_, rank_, step));
    network_.backward(compute_.get(), [&](int bucket) { reduce_bucket(step, bucket); });
    copy_for_truth(step, network_.loss(), layout_.total, 1, BucketType::f32);
    communicator_.all_reduce(network_.loss(), 1, BucketType::f32, ncclAvg, comm_.get());
    check(cuMemcpyDtoHAsync(loss(step), network_.loss(), sizeof(float), comm_.get()), "cuMemcpyDtoHAsync");
    check(cuEventRecord(reduced_.get(), comm_.get()), "cuEventRecord");
    check(cuStreamWaitEvent(compute_.get(), reduced_.get(), 0), "cuStreamWaitEvent");
    for (const Bucket& bucket : layout_.buckets) {
      const CUdeviceptr weights = network_.weights() + sizeof(float) * static_cast<std::size_t>(bucket.offset);
      update()(compute_.get(), grid_1d(bucket.count), weights, bucket_address(bucket), bucket.count,
               options_.learning_rate);
    }
    check(cuEventRecord(done_[slot(step)].get(), compute_.get()), "cuEventRecord");
  }

  // As DDP does: divide by the number of ranks (and round, with a compression hook) on the compute stream, then sum on
  // the communication stream while the backward pass goes on.
  void reduce_bucket(int step, int index) {
    const Bucket& bucket = layout_.buckets[static_cast<std::size_t>(index)];
    const CUdeviceptr gradient = network_.gradients() + sizeof(float) * static_cast<std::size_t>(bucket.offset);
    if (index == kNanBucket && options_.nan.rank == rank_ && options_.nan.step == step) {
      kernels_.plant_nan(compute_.get(), Grid{1, 1, 1}, gradient, kNanElement);
    }
    divide()(compute_.get(), grid_1d(bucket.count), gradient, bucket_address(bucket), bucket.count,
             static_cast<float>(options_.ranks));
    const Event& ready = ready_[static_cast<std::size_t>(index)];
    check(cuEventRecord(ready.get(), compute_.get()), "cuEventRecord");
    check(cuStreamWaitEvent(comm_.get(), ready.get(), 0), "cuStreamWaitEvent");
    copy_for_truth(step, bucket_address(bucket), bucket.offset, bucket.count, options_.type);
    communicator_.all_reduce(bucket_address(bucket), static_cast<std::size_t>(bucket.count), options_.type, ncclSum,
                             comm_.get());
  }

  void copy_for_truth(int step, CUdeviceptr data, int offset, int count, BucketType type) {
    if (!truth_) return;
    const std::size_t bytes = static_cast<std::size_t>(count) * (type == BucketType::f32 ? 4 : 2);
    check(cuMemcpyDtoHAsync(truth_copy(step, offset), data, bytes, comm_.get()), "cuMemcpyDtoHAsync");
  }

  void finish_step(int step) {
    communicator_.wait(done_[slot(step)], step);
    progress_.step_done(step, static_cast<double>(*loss(step)));
    if (!truth_) return;
    std::uint64_t op = first_op_[slot(step)];
    for (const Bucket& bucket : layout_.buckets) {
      truth_->add(op++, step, options_.type, truth_copy(step, bucket.offset), bucket.count);
    }
    truth_->add(op, step, BucketType::f32, truth_copy(step, layout_.total), 1);
  }

  void save_weights() {
    std::vector<float> weights(static_cast<std::size_t>(layout_.total));
    const std::size_t bytes = sizeof(float) * weights.size();
    check(cuMemcpyDtoH(weights.data(), network_.weights(), bytes), "cuMemcpyDtoH");
    shared_.weight_hash[rank_] = fnv1a(weights.data(), bytes);
    if (rank_ != 0 || options_.weights.empty()) return;
    std::ofstream out(options_.weights, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(weights.data()), static_cast<std::streamsize>(bytes));
    if (!out.flush())
      throw std::runtime_error(fmt::format("--weights: {}: {}", options_.weights, std::strerror(errno)));
  }

  CUdeviceptr bucket_address(const Bucket& bucket) const {
    const auto offset = static_cast<std::size_t>(bucket.offset);
    return options_.type == BucketType::f32 ? network_.gradients() + 4 * offset : half_buckets_.get() + 2 * offset;
  }
  const Kernel<CUdeviceptr, CUdeviceptr, int, float>& divide() const {
    return options_.type == BucketType::f32    ? kernels_.divide_f32
           : options_.type == BucketType::bf16 ? kernels_.divide_bf16
                                               : kernels_.divide_f16;
  }
  const Kernel<CUdeviceptr, CUdeviceptr, int, float>& update() const {
    return options_.type == BucketType::f32    ? kernels_.update_f32
           : options_.type == BucketType::bf16 ? kernels_.update_bf16
                                               : kernels_.update_f16;
  }
  float* loss(int step) const { return static_cast<float*>(losses_.get()) + step; }
  void* truth_copy(int step, int offset) const { return static_cast<float*>(truth_copies_[slot(step)].get()) + offset; }

  // The planted NaN: somewhere in the weight matrix of the third layer.
  static constexpr int kNanBucket = 2;
  static constexpr int kNanElement = 54321;

  const Options& options_;
  const int rank_;
  SharedState& shared_;
  const Digits digits_;
  const Context context_;
  const Layout layout_;
  const Kernels kernels_;
  Network network_;
  DeviceMemory half_buckets_;
  PinnedMemory losses_;
  std::unique_ptr<TruthWriter> truth_;
  std::array<PinnedMemory, kAhead> truth_copies_;
  std::array<std::uint64_t, kAhead> first_op_{};
  std::vector<Event> ready_;
  Event reduced_ = make_event();
  std::array<Event, kAhead> done_ = {make_event(), make_event()};
  Stream compute_ = make_stream();
  Stream comm_ = make_stream();
  Progress progress_;
  Communicator communicator_;
};

}  // namespace

int run_rank(const Options& options, int rank, SharedState& shared) {
  try {
    Trainer(options, rank, shared).train();
    return kExitOk;
  } catch (const PeerLost&) {
    return kExitPeerLost;
  } catch (const std::exception& error) {
    // After a failure the other ranks' errors are consequences: only the first one is worth a line.
    if (shared.stop.exchange(true)) return kExitPeerLost;
    fmt::print(stderr, "gradprobe-demo-train: rank {}: {}\n", rank, error.what());
    return kExitFailed;
  }
}

}  // namespace gradprobe::demo
