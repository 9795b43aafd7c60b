// The demo's device code against float64 on the host, and what the settings mean for data and dropout.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "digits.hpp"
#include "kernels.hpp"
#include "layout.hpp"
#include "network.hpp"
#include "sampling.hpp"
#include "truth.hpp"

namespace gradprobe::demo {
namespace {

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

template <class T>
std::vector<T> download(CUdeviceptr address, std::size_t count) {
  std::vector<T> values(count);
  check(cuCtxSynchronize(), "cuCtxSynchronize");
  check(cuMemcpyDtoH(values.data(), address, sizeof(T) * count), "cuMemcpyDtoH");
  return values;
}

template <class T>
DeviceMemory upload(const std::vector<T>& values) {
  DeviceMemory memory = device_memory(sizeof(T) * values.size());
  check(cuMemcpyHtoD(memory.get(), values.data(), sizeof(T) * values.size()), "cuMemcpyHtoD");
  return memory;
}

// Mean loss of a batch in float64, straight from the definition of the network; knows nothing of gradients.
double host_loss(const Layout& layout, const std::vector<double>& weights, const std::vector<float>& masks,
                 const Digits& digits, const std::vector<int>& images) {
  double total = 0;
  for (const int image : images) {
    std::vector<double> x(Digits::kPixels);
    for (int p = 0; p < Digits::kPixels; ++p) x[index(p)] = digits.images[index(image * Digits::kPixels + p)] / 16.0;
    int mask = 0;
    for (std::size_t l = 0; l < layout.layers.size(); ++l) {
      const Layer& layer = layout.layers[l];
      std::vector<double> z(weights.begin() + layer.bias, weights.begin() + layer.bias + layer.out);
      for (int i = 0; i < layer.in; ++i) {
        if (x[index(i)] == 0) continue;
        const double* row = &weights[index(layer.weight + i * layer.out)];
        for (int o = 0; o < layer.out; ++o) z[index(o)] += x[index(i)] * row[o];
      }
      if (l + 1 < layout.layers.size()) {
        for (double& v : z) v = std::max(v, 0.0) * static_cast<double>(masks[index(mask++)]);
      }
      x = std::move(z);
    }
    double sum = 0;
    for (const double v : x) sum += std::exp(v);
    total += std::log(sum) - x[digits.labels[index(image)]];
  }
  return total / static_cast<double>(images.size());
}

class OnDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_GT(device_count(), 0); }
  Context context_{0};
  Kernels kernels_;
  Stream stream_ = make_stream();
};

class NetworkTest : public OnDevice {
 protected:
  // Random weights, one forward and backward pass; then the loss and `samples` partial derivatives (0: all of them)
  // against the host's loss and its central differences.
  void compare(const Layout& layout, int batch, float dropout, int samples) {
    Network network(kernels_, layout, digits_, batch, dropout);
    std::mt19937_64 random(7);
    std::vector<float> weights = initial_weights(layout, 3);
    for (const Layer& layer : layout.layers) {
      for (int o = 0; o < layer.out; ++o) {
        weights[index(layer.bias + o)] = static_cast<float>(random() >> 11) * 0x1p-54f - 0.25f;
      }
    }
    check(cuMemcpyHtoD(network.weights(), weights.data(), 4 * weights.size()), "cuMemcpyHtoD");
    std::vector<int> order(index(3 * batch));
    for (int& image : order) image = static_cast<int>(random() % static_cast<unsigned>(digits_.count()));
    network.set_order(stream_.get(), order);
    network.forward(stream_.get(), 2, 99);
    std::vector<int> ready;
    network.backward(stream_.get(), [&](int bucket) { ready.push_back(bucket); });
    check(cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");

    ASSERT_EQ(ready.size(), layout.buckets.size());
    for (int b = 0; b < static_cast<int>(ready.size()); ++b) EXPECT_EQ(ready[index(b)], b);
    const auto masks = download<float>(network.masks(), index(layout.masks));
    const auto gradient = download<float>(network.gradients(), index(layout.total));
    const std::vector<int> images(order.begin() + 2 * batch, order.end());
    std::vector<double> precise(weights.begin(), weights.end());
    const double loss = host_loss(layout, precise, masks, digits_, images);
    EXPECT_NEAR(download<float>(network.loss(), 1)[0], loss, 1e-5 * loss);

    double largest = 0;
    for (const float g : gradient) largest = std::max(largest, std::abs(static_cast<double>(g)));
    ASSERT_GT(largest, 1e-3);
    for (const Layer& layer : layout.layers) {
      const int count = layer.out + layer.in * layer.out;  // the bias, then the weights
      for (int s = 0; s < (samples == 0 ? count : samples); ++s) {
        const int i = layer.bias + (samples == 0 ? s : static_cast<int>(random() % static_cast<unsigned>(count)));
        constexpr double kStep = 1e-6;
        const double kept = precise[index(i)];
        precise[index(i)] = kept + kStep;
        const double above = host_loss(layout, precise, masks, digits_, images);
        precise[index(i)] = kept - kStep;
        const double below = host_loss(layout, precise, masks, digits_, images);
        precise[index(i)] = kept;
        ASSERT_NEAR(gradient[index(i)], (above - below) / (2 * kStep), 1e-5 * largest) << "parameter " << i;
      }
    }
  }

  const Digits digits_ = read_digits(GRADPROBE_DEMO_DATA);
};

TEST_F(NetworkTest, EveryDerivativeOfASmallNetworkWithOddSizes) {
  compare(make_layout({64, 21, 35, 10}, 100, 500), 5, 0.25f, 0);
}

TEST_F(NetworkTest, OneImageOneHiddenLayerNoDropout) {
  compare(make_layout({64, 8, 10}, 1, 1), 1, 0.0f, 0);
}

TEST_F(NetworkTest, SampledDerivativesOfTheDemosNetwork) {
  compare(demo_layout(), 40, 0.2f, 8);
}

TEST_F(NetworkTest, TwiceTheSameBits) {
  const Layout layout = demo_layout();
  std::array<std::vector<std::uint32_t>, 2> gradients;
  for (auto& gradient : gradients) {
    Network network(kernels_, layout, digits_, 16, 0.2f);
    const std::vector<float> weights = initial_weights(layout, 1);
    check(cuMemcpyHtoD(network.weights(), weights.data(), 4 * weights.size()), "cuMemcpyHtoD");
    std::vector<int> order(16);
    std::iota(order.begin(), order.end(), 100);
    network.set_order(stream_.get(), order);
    network.forward(stream_.get(), 0, 5);
    network.backward(stream_.get(), [](int) {});
    check(cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
    gradient = download<std::uint32_t>(network.gradients(), index(layout.total));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST_F(OnDevice, DropoutDropsItsShareAndKeepsTheMean) {
  constexpr int kWidth = 40000;
  const DeviceMemory mask = device_memory(4 * kWidth);
  const auto draw = [&](std::uint64_t key, float rate) {
    kernels_.dropout_mask(stream_.get(), grid_1d(kWidth), mask.get(), kWidth, key, rate);
    check(cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
    return download<float>(mask.get(), kWidth);
  };
  for (const float rate : {0.2f, 0.5f}) {
    const auto values = draw(11, rate);
    const auto dropped = std::count(values.begin(), values.end(), 0.0f);
    const double sigma = std::sqrt(kWidth * static_cast<double>(rate) * (1 - static_cast<double>(rate)));
    EXPECT_NEAR(static_cast<double>(dropped), kWidth * static_cast<double>(rate), 5 * sigma);
    EXPECT_EQ(dropped + std::count(values.begin(), values.end(), 1.0f / (1.0f - rate)), kWidth);
    EXPECT_EQ(values, draw(11, rate));
    const auto others = draw(12, rate);
    int agree = 0;
    for (int i = 0; i < kWidth; ++i) agree += values[index(i)] == others[index(i)];
    const double p = 1 - 2 * static_cast<double>(rate) * (1 - static_cast<double>(rate));
    EXPECT_NEAR(agree, kWidth * p, 5 * std::sqrt(kWidth * p * (1 - p)));
  }
  const auto all = draw(11, 0.0f);
  EXPECT_EQ(std::count(all.begin(), all.end(), 1.0f), kWidth);
}

// Rounding to 16 bits is right when neither neighbour is nearer.
template <class Value>
void expect_nearest(const std::vector<std::uint16_t>& rounded, const std::vector<double>& exact, Value value) {
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    const double error = std::abs(value(rounded[i]) - exact[i]);
    EXPECT_LE(error, std::abs(value(static_cast<std::uint16_t>(rounded[i] + 1)) - exact[i])) << exact[i];
    if ((rounded[i] & 0x7fff) == 0) continue;
    EXPECT_LE(error, std::abs(value(static_cast<std::uint16_t>(rounded[i] - 1)) - exact[i])) << exact[i];
  }
}

TEST_F(OnDevice, BucketsAreDividedRoundedAndApplied) {
  constexpr int kCount = 1001;
  constexpr float kRanks = 8;
  std::mt19937_64 random(1);
  std::vector<float> gradient(kCount);
  std::vector<double> exact(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    gradient[i] = std::ldexp(static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f, static_cast<int>(random() % 12) - 8);
    exact[i] = static_cast<double>(gradient[i]) / 8;
  }
  const DeviceMemory input = upload(gradient);
  const DeviceMemory bucket = device_memory(4 * kCount);
  const std::vector<float> before(kCount, 1.5f);
  const auto run = [&](const auto& divide, const auto& apply) {
    const DeviceMemory weights = upload(before);
    divide(stream_.get(), grid_1d(kCount), input.get(), bucket.get(), kCount, kRanks);
    apply(stream_.get(), grid_1d(kCount), weights.get(), bucket.get(), kCount, 0.5f);
    check(cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
    return download<float>(weights.get(), kCount);
  };
  const auto expect_applied = [&](const std::vector<float>& weights, auto value) {
    for (std::size_t i = 0; i < kCount; ++i) EXPECT_NEAR(weights[i], 1.5 - 0.5 * value(i), 2e-7);
  };

  auto weights = run(kernels_.divide_f32, kernels_.update_f32);
  const auto f32 = download<float>(bucket.get(), kCount);
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(f32[i], static_cast<float>(exact[i]));
  expect_applied(weights, [&](std::size_t i) { return exact[i]; });

  weights = run(kernels_.divide_bf16, kernels_.update_bf16);
  const auto bf16 = download<std::uint16_t>(bucket.get(), kCount);
  expect_nearest(bf16, exact, bf16_value);
  expect_applied(weights, [&](std::size_t i) { return bf16_value(bf16[i]); });

  weights = run(kernels_.divide_f16, kernels_.update_f16);
  const auto f16 = download<std::uint16_t>(bucket.get(), kCount);
  expect_nearest(f16, exact, f16_value);
  expect_applied(weights, [&](std::size_t i) { return f16_value(f16[i]); });
}

TEST_F(OnDevice, ThePlantedNanIsOneElement) {
  const DeviceMemory gradient = device_memory(4 * 100);
  kernels_.plant_nan(stream_.get(), Grid{1, 1, 1}, gradient.get(), 42);
  check(cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
  const auto values = download<float>(gradient.get(), 100);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(std::isnan(values[i]), i == 42);
}

TEST(Float16, PublishedValues) {
  EXPECT_EQ(f16_value(0x3c00), 1.0);
  EXPECT_EQ(f16_value(0xc000), -2.0);
  EXPECT_EQ(f16_value(0x7bff), 65504.0);
  EXPECT_EQ(f16_value(0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(f16_value(0x3555), 0.333251953125);
  EXPECT_EQ(f16_value(0xfc00), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(f16_value(0x7e00)));
  EXPECT_EQ(bf16_value(0x3f80), 1.0);
  EXPECT_EQ(bf16_value(0x4049), 3.140625);
}

TEST(DigitsTest, AsUciDescribesThem) {
  const Digits digits = read_digits(GRADPROBE_DEMO_DATA);
  EXPECT_EQ(digits.count(), 1797);
  std::array<int, 10> classes{};
  for (const unsigned char label : digits.labels) ++classes[label];
  // From optdigits.names: images of each digit in the test set.
  EXPECT_EQ(classes, (std::array<int, 10>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}));
}

std::string error_of(const std::string& content) {
  const std::string file = testing::TempDir() + "digits-test.csv";
  std::ofstream(file) << content;
  std::string message;
  try {
    read_digits(file);
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  std::remove(file.c_str());
  return message;
}

TEST(DigitsTest, BadFilesAreNamed) {
  EXPECT_THROW(read_digits("/nonexistent/digits.csv"), std::runtime_error);
  std::string good;
  for (int i = 0; i < 64; ++i) good += "16,";
  EXPECT_EQ(error_of(good + "9\n"), "");
  for (const std::string& bad : {good + "10\n", good + "9,1\n", good + "\n", "17" + good.substr(2) + "9\n",
                                 "-1" + good.substr(2) + "9\n", good + "9\n\n", std::string("x\n")}) {
    EXPECT_NE(error_of(bad).find("digits-test.csv: line "), std::string::npos) << bad;
  }
  EXPECT_NE(error_of("").find("no images"), std::string::npos);
}

TEST(LayoutTest, EveryParameterLiesInOneBucketOnce) {
  for (const Layout& layout : {demo_layout(), make_layout({64, 21, 35, 10}, 100, 500), make_layout({4, 3}, 1, 1)}) {
    std::vector<int> uses(index(layout.total), 0);
    int bucket = 0;
    for (auto layer = layout.layers.rbegin(); layer != layout.layers.rend(); ++layer) {
      const Bucket& home = layout.buckets[index(bucket)];
      for (int i = 0; i < layer->out; ++i) ++uses[index(layer->bias + i)];
      for (int i = 0; i < layer->in * layer->out; ++i) ++uses[index(layer->weight + i)];
      EXPECT_GE(std::min(layer->bias, layer->weight), home.offset);
      EXPECT_LE(std::max(layer->bias + layer->out, layer->weight + layer->in * layer->out), home.offset + home.count);
      if (layer->bucket >= 0) {
        EXPECT_EQ(layer->bucket, bucket++);
      }
    }
    EXPECT_EQ(bucket, static_cast<int>(layout.buckets.size()));
    for (const Bucket& b : layout.buckets) {
      EXPECT_EQ(b.offset % 64, 0);
      for (int i = 0; i < b.count; ++i) EXPECT_EQ(uses[index(b.offset + i)], 1);
    }
    EXPECT_EQ(std::count(uses.begin(), uses.end(), 1), layout.parameters);
  }
  EXPECT_EQ(demo_layout().parameters, 64 * 304 + 304 + 3 * (304 * 304 + 304) + 304 * 10 + 10);
  EXPECT_EQ(demo_layout().buckets.size(), 5u);
}

TEST(SamplingTest, SettingsDifferInWhatTheySay) {
  Options options;
  options.steps = 60;
  options.batch = 64;
  const auto order = [&](Setting setting, int rank) {
    options.setting = setting;
    return image_order(options, rank, 1797);
  };
  const auto key = [&](Setting setting, int rank) {
    options.setting = setting;
    return dropout_key(options, rank, 4);
  };
  EXPECT_EQ(order(Setting::same, 0), order(Setting::same, 5));
  EXPECT_EQ(key(Setting::same, 0), key(Setting::same, 5));
  EXPECT_NE(order(Setting::own_shuffle, 0), order(Setting::own_shuffle, 5));
  EXPECT_EQ(key(Setting::own_shuffle, 0), key(Setting::own_shuffle, 5));
  EXPECT_EQ(order(Setting::own_seeds, 5), order(Setting::own_shuffle, 5));
  EXPECT_NE(key(Setting::own_seeds, 0), key(Setting::own_seeds, 5));
  std::set<std::uint64_t> keys;
  for (int step = 0; step < 100; ++step) keys.insert(dropout_key(options, 5, step));
  EXPECT_EQ(keys.size(), 100u);
}

TEST(SamplingTest, AnEpochShowsEachImageAtMostOnce) {
  Options options;
  options.steps = 8;
  options.batch = 30;
  const std::vector<int> order = image_order(options, 3, 100);
  ASSERT_EQ(order.size(), 240u);
  for (std::size_t epoch = 0; epoch * 90 < order.size(); ++epoch) {
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(epoch * 90);
    const auto last = order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), epoch * 90 + 90));
    const std::set<int> seen(first, last);
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(last - first));
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), 100);
  }
}

}  // namespace
}  // namespace gradprobe::demo
