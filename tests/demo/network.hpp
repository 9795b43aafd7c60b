// One rank's copy of the perceptron on its device.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "digits.hpp"
#include "kernels.hpp"
#include "layout.hpp"

namespace gradprobe::demo {

class Network {
 public:
  Network(const Kernels& kernels, const Layout& layout, const Digits& digits, int batch, float dropout);

  // The images, by number, of all batches to come.
  void set_order(CUstream stream, const std::vector<int>& order);

  // Loads batch number `step` of the order, draws the dropout masks from `mask_key`, leaves the batch's mean loss at
  // loss() and the gradient by the logits for backward().
  void forward(CUstream stream, int step, std::uint64_t mask_key);

  // Gradients of every parameter, last layer first. `bucket_ready(b)` is called when all gradients of bucket b have
  // been enqueued on the stream.
  void backward(CUstream stream, const std::function<void(int)>& bucket_ready);

  CUdeviceptr weights() const { return weights_.get(); }
  CUdeviceptr gradients() const { return gradients_.get(); }
  CUdeviceptr masks() const { return masks_.get(); }
  CUdeviceptr loss() const { return loss_.get(); }

 private:
  CUdeviceptr mask(std::size_t layer) const;

  const Kernels& kernels_;
  const Layout& layout_;
  int batch_;
  float dropout_;
  DeviceMemory images_, labels_, order_;
  DeviceMemory weights_, gradients_, masks_, loss_;
  DeviceMemory batch_labels_;
  std::vector<DeviceMemory> inputs_;           // of each layer: batch x in
  std::vector<DeviceMemory> input_gradients_;  // of each layer but the first
  DeviceMemory logits_, logit_gradients_;
};

// `count` weights drawn uniformly after He et al. 2015 (biases and gaps 0), for rank 0 to broadcast.
std::vector<float> initial_weights(const Layout& layout, std::uint64_t seed);

}  // namespace gradprobe::demo
