// Device code of the demo: a multi-layer perceptron's forward and backward pass, its update and DDP's bucket
// preparation. Everything is deterministic: each output element is summed by one thread in a fixed order, without
// atomics, so equal seeds give equal bits. Matrices are row-major. Names and parameter lists: kernels.hpp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

// C (m x n) = A (m x k) * B (k x n), one CTA of 64 threads for a 64 x 64 tile of C, one thread for 8 x 8 elements.
// Bounds are checked where tiles are loaded and stored; in between they are full of zeros, so the inner loop of
// 64 multiply-adds for 4 shared loads runs without a test.
constexpr int kTileM = 64;
constexpr int kTileN = 64;
constexpr int kTileK = 16;
constexpr int kThreads = 64;

enum class Stored { plain, transposed };

// Element (row, column) of an operand stored as it is or transposed; 0 outside.
template <Stored kStored>
__device__ float element(const float* matrix, int rows, int columns, int row, int column) {
  if (row >= rows || column >= columns) return 0.0f;
  return kStored == Stored::plain ? matrix[row * columns + column] : matrix[column * rows + row];
}

template <Stored kStoredA, Stored kStoredB, class Epilogue>
__device__ void multiply(const float* a, const float* b, int m, int n, int k, Epilogue epilogue) {
  __shared__ float4 tile_a[kTileK][kTileM / 4];
  __shared__ float4 tile_b[kTileK][kTileN / 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(blockIdx.y) * kTileM;
  const int first_column = static_cast<int>(blockIdx.x) * kTileN;
  const int ty = thread / 8;
  const int tx = thread % 8;
  float sum[8][8] = {};

  for (int k0 = 0; k0 < k; k0 += kTileK) {
    float* flat_a = &tile_a[0][0].x;
    float* flat_b = &tile_b[0][0].x;
#pragma unroll
    for (int i = 0; i < kTileM * kTileK / kThreads; ++i) {
      const int at = i * kThreads + thread;
      // Neighbouring threads read neighbouring addresses, whichever way the operand is stored.
      const int row = kStoredA == Stored::plain ? at / kTileK : at % kTileM;
      const int column = kStoredA == Stored::plain ? at % kTileK : at / kTileM;
      flat_a[column * kTileM + row] = element<kStoredA>(a, m, k, first_row + row, k0 + column);
    }
#pragma unroll
    for (int i = 0; i < kTileN * kTileK / kThreads; ++i) {
      const int at = i * kThreads + thread;
      const int row = kStoredB == Stored::plain ? at / kTileN : at % kTileK;
      const int column = kStoredB == Stored::plain ? at % kTileN : at / kTileK;
      flat_b[row * kTileN + column] = element<kStoredB>(b, k, n, k0 + row, first_column + column);
    }
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < kTileK; ++kk) {
      const float4 x0 = tile_a[kk][ty];
      const float4 x1 = tile_a[kk][ty + 8];
      const float4 y0 = tile_b[kk][tx];
      const float4 y1 = tile_b[kk][tx + 8];
      const float left[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
      const float right[8] = {y0.x, y0.y, y0.z, y0.w, y1.x, y1.y, y1.z, y1.w};
#pragma unroll
      for (int r = 0; r < 8; ++r) {
#pragma unroll
        for (int c = 0; c < 8; ++c) sum[r][c] = fmaf(left[r], right[c], sum[r][c]);
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const int row = first_row + 4 * ty + (r < 4 ? r : 28 + r);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const int column = first_column + 4 * tx + (c < 4 ? c : 28 + c);
      if (row < m && column < n) epilogue(row, column, sum[r][c]);
    }
  }
}

__device__ std::uint32_t hash32(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
}

__device__ int global_thread() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

template <class T>
__device__ void divide_into(const float* gradient, T* bucket, int count, float divisor) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = global_thread(); i < count; i += stride) bucket[i] = static_cast<T>(gradient[i] / divisor);
}

template <class T>
__device__ void update(float* weights, const T* bucket, int count, float learning_rate) {
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = global_thread(); i < count; i += stride) {
    weights[i] = fmaf(-learning_rate, static_cast<float>(bucket[i]), weights[i]);
  }
}

}  // namespace

extern "C" {

// x[i] = image order[first + i], scaled to 0...1; y[i] its label.
__global__ void demo_gather(const unsigned char* images, const unsigned char* labels, const int* order, int first,
                            int batch, int pixels, float* x, int* y) {
  const int i = global_thread();
  if (i >= batch * pixels) return;
  const int image = order[first + i / pixels];
  x[i] = static_cast<float>(images[image * pixels + i % pixels]) * (1.0f / 16.0f);
  if (i % pixels == 0) y[i / pixels] = labels[image];
}

// One mask for the whole batch (batchwise dropout): 0 with probability `rate`, else 1 / (1 - rate).
__global__ void demo_dropout_mask(float* mask, int width, unsigned long long key, float rate) {
  const int i = global_thread();
  if (i >= width) return;
  const float uniform = static_cast<float>(hash32(key + static_cast<unsigned long long>(i)) >> 8) * 0x1p-24f;
  mask[i] = uniform < rate ? 0.0f : 1.0f / (1.0f - rate);
}

// h = relu(x * w + bias) * mask
__global__ void demo_hidden(const float* x, const float* w, const float* bias, const float* mask, int batch, int in,
                            int out, float* h) {
  multiply<Stored::plain, Stored::plain>(x, w, batch, out, in, [=](int row, int column, float v) {
    const float z = v + bias[column];
    h[row * out + column] = (z < 0.0f ? 0.0f : z) * mask[column];  // a NaN stays one, as in any framework
  });
}

// z = x * w + bias
__global__ void demo_output(const float* x, const float* w, const float* bias, int batch, int in, int out, float* z) {
  multiply<Stored::plain, Stored::plain>(
      x, w, batch, out, in, [=](int row, int column, float v) { z[row * out + column] = v + bias[column]; });
}

// Softmax and cross-entropy: dz = gradient of the batch's mean loss by z, *loss = that mean. One CTA.
__global__ void demo_loss(const float* z, const int* y, int batch, int classes, float* dz, float* loss) {
  __shared__ float sums[256];
  const int thread = static_cast<int>(threadIdx.x);
  const float scale = 1.0f / static_cast<float>(batch);
  float sum = 0.0f;
  for (int row = thread; row < batch; row += 256) {
    const float* in = z + row * classes;
    float* out = dz + row * classes;
    float top = in[0];
    for (int c = 1; c < classes; ++c) top = fmaxf(top, in[c]);
    float total = 0.0f;
    for (int c = 0; c < classes; ++c) total += expf(in[c] - top);
    const float log_total = logf(total);
    for (int c = 0; c < classes; ++c) {
      const float p = expf(in[c] - top - log_total);
      out[c] = (c == y[row] ? p - 1.0f : p) * scale;
    }
    sum += log_total - (in[y[row]] - top);
  }
  sums[thread] = sum;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    __syncthreads();
  }
  if (thread == 0) *loss = sums[0] * scale;
}

// dw = x^T * dz
__global__ void demo_weight_gradient(const float* x, const float* dz, int batch, int in, int out, float* dw) {
  multiply<Stored::transposed, Stored::plain>(x, dz, in, out, batch,
                                              [=](int row, int column, float v) { dw[row * out + column] = v; });
}

// db = column sums of dz
__global__ void demo_bias_gradient(const float* dz, int batch, int out, float* db) {
  const int column = global_thread();
  if (column >= out) return;
  float sum = 0.0f;
  for (int row = 0; row < batch; ++row) sum += dz[row * out + column];
  db[column] = sum;
}

// dh = (dz * w^T) through dropout and relu: h is 0 where one of them stops the value.
__global__ void demo_hidden_gradient(const float* dz, const float* w, const float* h, const float* mask, int batch,
                                     int in, int out, float* dh) {
  multiply<Stored::plain, Stored::transposed>(dz, w, batch, in, out, [=](int row, int column, float v) {
    const int at = row * in + column;
    dh[at] = h[at] <= 0.0f ? 0.0f : v * mask[column];
  });
}

// What DDP does before its all-reduce: divide by the number of ranks and, with a compression hook, round to 16 bits.
__global__ void demo_divide_f32(const float* gradient, float* bucket, int count, float divisor) {
  divide_into(gradient, bucket, count, divisor);
}
__global__ void demo_divide_bf16(const float* gradient, __nv_bfloat16* bucket, int count, float divisor) {
  divide_into(gradient, bucket, count, divisor);
}
__global__ void demo_divide_f16(const float* gradient, __half* bucket, int count, float divisor) {
  divide_into(gradient, bucket, count, divisor);
}

// weights -= learning_rate * bucket
__global__ void demo_update_f32(float* weights, const float* bucket, int count, float learning_rate) {
  update(weights, bucket, count, learning_rate);
}
__global__ void demo_update_bf16(float* weights, const __nv_bfloat16* bucket, int count, float learning_rate) {
  update(weights, bucket, count, learning_rate);
}
__global__ void demo_update_f16(float* weights, const __half* bucket, int count, float learning_rate) {
  update(weights, bucket, count, learning_rate);
}

// The planted fault: one NaN, as an overflow in one layer of one rank would leave.
__global__ void demo_plant_nan(float* gradient, int element) {
  gradient[element] = __int_as_float(0x7fc00000);
}
}
