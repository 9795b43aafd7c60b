// The second file of the probe's device code: what the first one refers to.
__device__ int scale = 3;
__device__ float scaled(float x) {
  return x * static_cast<float>(scale);
}
using Function = float (*)(float);
__device__ float halved(float x) {
  return x / 2;
}
__device__ Function table[2] = {scaled, halved};
