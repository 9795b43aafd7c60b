// Where the parameters of the perceptron lie: one flat array of float32, cut into buckets as DDP cuts it. Weights and
// gradients use the same layout, so a bucket's gradient is all-reduced in place and applied to the weights in one go.
#pragma once

#include <vector>

namespace gradprobe::demo {

struct Layer {
  int in = 0, out = 0;
  int weight = 0;  // offsets in the flat array; the weight matrix is in x out
  int bias = 0;
  int bucket = 0;  // the bucket that is complete with this layer's gradient, or -1
};

struct Bucket {
  int offset = 0;
  int count = 0;
};

struct Layout {
  std::vector<Layer> layers;    // in forward order
  std::vector<Bucket> buckets;  // in the order of their all-reduces: the last layer's first
  int total = 0;                // floats of the flat array, the gaps between buckets included
  int parameters = 0;

  int masks = 0;  // hidden units of all layers: length of the dropout masks
};

// `widths`: pixels, hidden units..., classes. Parameters are packed in reverse order of the layers, a bucket being
// closed when it has reached its cap; the first cap is small, so that communication starts early.
Layout make_layout(const std::vector<int>& widths, int first_cap, int cap);

// The demo's network: 64 - 4 x 304 - 10, 301k parameters in 5 buckets.
Layout demo_layout();

}  // namespace gradprobe::demo
