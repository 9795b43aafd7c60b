#include "layout.hpp"

#include <cstddef>

#include "digits.hpp"

namespace gradprobe::demo {

Layout make_layout(const std::vector<int>& widths, int first_cap, int cap) {
  Layout layout;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    layout.layers.push_back({widths[i], widths[i + 1], 0, 0, -1});
    if (i > 0) layout.masks += widths[i];
  }
  constexpr int kAlign = 64;  // floats: buckets start on their own 256 bytes, parameters inside are packed
  Bucket open;
  for (auto layer = layout.layers.rbegin(); layer != layout.layers.rend(); ++layer) {
    layer->bias = open.offset + open.count;
    layer->weight = layer->bias + layer->out;
    const int count = layer->out + layer->in * layer->out;
    open.count += count;
    layout.parameters += count;
    const bool last = layer + 1 == layout.layers.rend();
    if (last || open.count >= (layout.buckets.empty() ? first_cap : cap)) {
      layer->bucket = static_cast<int>(layout.buckets.size());
      layout.buckets.push_back(open);
      open = {(open.offset + open.count + kAlign - 1) / kAlign * kAlign, 0};
    }
  }
  layout.total = open.offset;
  return layout;
}

Layout demo_layout() {
  return make_layout({Digits::kPixels, 304, 304, 304, 304, Digits::kClasses}, 2048, 65536);
}

}  // namespace gradprobe::demo
