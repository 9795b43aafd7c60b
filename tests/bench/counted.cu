// A kernel whose cost is known, for sass_test.py: eight floats an iteration, each squared once; a guard that sends the
// iteration to a call, one that skips the squares, and an extra that is asked for at run time.
__device__ __noinline__ float slow(const float4* p) {
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < 8; ++i) sum = fmaf(reinterpret_cast<const float*>(p)[i], 2.0f, sum);
  return sum;
}

extern "C" __global__ void counted_f32(const float4* p, int n, int extra, float* out) {
  __shared__ int bits[256];
  bits[threadIdx.x] = 0;
  float a = 0, b = 0, other = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) {
    const float4 x = __ldcs(p + 2 * i), y = __ldcs(p + 2 * i + 1);
    if (extra) {
      bits[threadIdx.x] += __popc(__float_as_int(x.x)) + __popc(__float_as_int(x.y)) + __popc(__float_as_int(x.z)) +
                           __popc(__float_as_int(x.w)) + __popc(__float_as_int(y.x)) + __popc(__float_as_int(y.y)) +
                           __popc(__float_as_int(y.z)) + __popc(__float_as_int(y.w));
    }
    if (!(x.x < 1e9f)) {
      other += slow(p + 2 * i);
      continue;
    }
    a = fmaf(x.x, x.x, a);
    b = fmaf(x.y, x.y, b);
    a = fmaf(x.z, x.z, a);
    b = fmaf(x.w, x.w, b);
    a = fmaf(y.x, y.x, a);
    b = fmaf(y.y, y.y, b);
    a = fmaf(y.z, y.z, a);
    b = fmaf(y.w, y.w, b);
  }
  out[threadIdx.x] = a + b + other + static_cast<float>(bits[threadIdx.x]);
}
