#include "network.hpp"

#include <cmath>
#include <random>

namespace gradprobe::demo {
namespace {

DeviceMemory floats(int count) {
  return device_memory(sizeof(float) * static_cast<std::size_t>(count));
}

CUdeviceptr at(const DeviceMemory& memory, int offset) {
  return memory.get() + sizeof(float) * static_cast<std::size_t>(offset);
}

DeviceMemory upload(const std::vector<unsigned char>& bytes) {
  DeviceMemory memory = device_memory(bytes.size());
  check(cuMemcpyHtoD(memory.get(), bytes.data(), bytes.size()), "cuMemcpyHtoD");
  return memory;
}

}  // namespace

Network::Network(const Kernels& kernels, const Layout& layout, const Digits& digits, int batch, float dropout)
    : kernels_(kernels),
      layout_(layout),
      batch_(batch),
      dropout_(dropout),
      images_(upload(digits.images)),
      labels_(upload(digits.labels)),
      weights_(floats(layout.total)),
      gradients_(floats(layout.total)),
      masks_(floats(layout.masks)),
      loss_(floats(1)),
      batch_labels_(floats(batch)),
      logits_(floats(batch * Digits::kClasses)),
      logit_gradients_(floats(batch * Digits::kClasses)) {
  for (const Layer& layer : layout.layers) {
    inputs_.push_back(floats(batch * layer.in));
    input_gradients_.push_back(floats(batch * layer.in));
  }
}

void Network::set_order(CUstream stream, const std::vector<int>& order) {
  order_ = device_memory(sizeof(int) * order.size());
  check(cuMemcpyHtoDAsync(order_.get(), order.data(), sizeof(int) * order.size(), stream), "cuMemcpyHtoDAsync");
  check(cuStreamSynchronize(stream), "cuStreamSynchronize");
}

// The masks of all hidden layers follow each other; mask(i) belongs to the input of layer i.
CUdeviceptr Network::mask(std::size_t layer) const {
  int offset = 0;
  for (std::size_t i = 1; i < layer; ++i) offset += layout_.layers[i].in;
  return at(masks_, offset);
}

void Network::forward(CUstream stream, int step, std::uint64_t mask_key) {
  kernels_.gather(stream, grid_1d(batch_ * Digits::kPixels), images_.get(), labels_.get(), order_.get(), step * batch_,
                  batch_, Digits::kPixels, inputs_[0].get(), batch_labels_.get());
  kernels_.dropout_mask(stream, grid_1d(layout_.masks), masks_.get(), layout_.masks, mask_key, dropout_);
  for (std::size_t i = 0; i < layout_.layers.size(); ++i) {
    const Layer& layer = layout_.layers[i];
    const Grid grid = grid_tiles(batch_, layer.out);
    if (i + 1 < layout_.layers.size()) {
      kernels_.hidden(stream, grid, inputs_[i].get(), at(weights_, layer.weight), at(weights_, layer.bias), mask(i + 1),
                      batch_, layer.in, layer.out, inputs_[i + 1].get());
    } else {
      kernels_.output(stream, grid, inputs_[i].get(), at(weights_, layer.weight), at(weights_, layer.bias), batch_,
                      layer.in, layer.out, logits_.get());
    }
  }
  kernels_.loss(stream, Grid{}, logits_.get(), batch_labels_.get(), batch_, Digits::kClasses, logit_gradients_.get(),
                loss_.get());
}

void Network::backward(CUstream stream, const std::function<void(int)>& bucket_ready) {
  CUdeviceptr dz = logit_gradients_.get();
  for (std::size_t i = layout_.layers.size(); i-- > 0;) {
    const Layer& layer = layout_.layers[i];
    kernels_.weight_gradient(stream, grid_tiles(layer.in, layer.out), inputs_[i].get(), dz, batch_, layer.in, layer.out,
                             at(gradients_, layer.weight));
    kernels_.bias_gradient(stream, grid_1d(layer.out), dz, batch_, layer.out, at(gradients_, layer.bias));
    if (layer.bucket >= 0) bucket_ready(layer.bucket);
    if (i == 0) break;
    kernels_.hidden_gradient(stream, grid_tiles(batch_, layer.in), dz, at(weights_, layer.weight), inputs_[i].get(),
                             mask(i), batch_, layer.in, layer.out, input_gradients_[i].get());
    dz = input_gradients_[i].get();
  }
}

std::vector<float> initial_weights(const Layout& layout, std::uint64_t seed) {
  std::vector<float> weights(static_cast<std::size_t>(layout.total));
  std::mt19937_64 random(seed);
  for (const Layer& layer : layout.layers) {
    // The last layer starts smaller: logits near 0 make the first loss about ln(classes).
    const bool last = &layer == &layout.layers.back();
    const double limit = std::sqrt(6.0 / layer.in) * (last ? 0.5 : 1.0);
    for (int i = 0; i < layer.in * layer.out; ++i) {
      const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
      weights[static_cast<std::size_t>(layer.weight + i)] = static_cast<float>(limit * (2 * uniform - 1));
    }
  }
  return weights;
}

}  // namespace gradprobe::demo
