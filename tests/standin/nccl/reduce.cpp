#include <algorithm>
#include <cstring>
#include <type_traits>

#include "float_types.h"
#include "transfer.h"

namespace standin {
namespace {

constexpr size_t kBlock = 1024;  // elements: accumulator and one block of each input stay in the first-level cache

template <typename T>
struct Storage {
  using Wide = T;
  static Wide load(T v) { return v; }
  static T store(Wide v) { return v; }
};
template <typename Bits, int E, int M, bool F, bool S>
struct Storage<SmallFloat<Bits, E, M, F, S>> {
  using T = SmallFloat<Bits, E, M, F, S>;
  using Wide = float;
  static Wide load(T v) { return v.value(); }
  static T store(Wide v) { return T::from(v); }
};

// Integers wrap around.
template <typename W, typename F>
W wrapping(W a, W b, F f) {
  if constexpr (std::is_integral_v<W>) {
    using U = std::conditional_t<(sizeof(W) < 4), uint32_t, std::make_unsigned_t<W>>;
    return static_cast<W>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}
struct Add {
  template <typename W>
  static W apply(W a, W b) {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Multiply {
  template <typename W>
  static W apply(W a, W b) {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Largest {
  template <typename W>
  static W apply(W a, W b) {
    return a < b ? b : a;
  }
};
struct Smallest {
  template <typename W>
  static W apply(W a, W b) {
    return b < a ? b : a;
  }
};

template <typename T, typename Fold>
void fold(int ranks, const void* const* inputs, void* out, size_t n, bool average = false) {
  using W = typename Storage<T>::Wide;
  alignas(64) W acc[kBlock];
  for (size_t at = 0; at < n; at += kBlock) {
    size_t m = std::min(kBlock, n - at);
    for (int r = 0; r < ranks; r++) {
      const T* in = static_cast<const T*>(inputs[r]) + at;
      for (size_t i = 0; i < m; i++)
        acc[i] = r == 0 ? Storage<T>::load(in[i]) : Fold::apply(acc[i], Storage<T>::load(in[i]));
    }
    if (average)
      for (size_t i = 0; i < m; i++) acc[i] = static_cast<W>(acc[i] / static_cast<W>(ranks));
    T* to = static_cast<T*>(out) + at;
    for (size_t i = 0; i < m; i++) to[i] = Storage<T>::store(acc[i]);
  }
}

template <typename T>
void reduce_as(ncclRedOp_t op, int ranks, const void* const* inputs, void* out, size_t n) {
  switch (op) {
    case ncclProd:
      return fold<T, Multiply>(ranks, inputs, out, n);
    case ncclMax:
      return fold<T, Largest>(ranks, inputs, out, n);
    case ncclMin:
      return fold<T, Smallest>(ranks, inputs, out, n);
    default:
      return fold<T, Add>(ranks, inputs, out, n, op == ncclAvg);
  }
}

}  // namespace

void reduce(ncclDataType_t type, ncclRedOp_t op, int ranks, const void* const* inputs, void* out, size_t n) {
  switch (type) {
    case ncclInt8:
      return reduce_as<int8_t>(op, ranks, inputs, out, n);
    case ncclUint8:
      return reduce_as<uint8_t>(op, ranks, inputs, out, n);
    case ncclInt32:
      return reduce_as<int32_t>(op, ranks, inputs, out, n);
    case ncclUint32:
      return reduce_as<uint32_t>(op, ranks, inputs, out, n);
    case ncclInt64:
      return reduce_as<int64_t>(op, ranks, inputs, out, n);
    case ncclUint64:
      return reduce_as<uint64_t>(op, ranks, inputs, out, n);
    case ncclFloat16:
      return reduce_as<Half>(op, ranks, inputs, out, n);
    case ncclFloat32:
      return reduce_as<float>(op, ranks, inputs, out, n);
    case ncclFloat64:
      return reduce_as<double>(op, ranks, inputs, out, n);
    case ncclBfloat16:
      return reduce_as<Bfloat16>(op, ranks, inputs, out, n);
    case ncclFloat8e4m3:
      return reduce_as<Float8e4m3>(op, ranks, inputs, out, n);
    case ncclFloat8e5m2:
      return reduce_as<Float8e5m2>(op, ranks, inputs, out, n);
    default:
      return;
  }
}

const char* func_name(Func f) {
  static const char* const kNames[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                       "AllReduce", "SendRecv", "Send",      "Recv"};
  return kNames[static_cast<int>(f)];
}

const char* type_name(ncclDataType_t t) {
  switch (t) {
    case ncclInt8:
      return "ncclInt8";
    case ncclInt32:
      return "ncclInt32";
    case ncclUint32:
      return "ncclUint32";
    case ncclInt64:
      return "ncclInt64";
    case ncclUint64:
      return "ncclUint64";
    case ncclFloat16:
      return "ncclFloat16";
    case ncclFloat32:
      return "ncclFloat32";
    case ncclFloat64:
      return "ncclFloat64";
    case ncclBfloat16:
      return "ncclBfloat16";
    case ncclFloat8e4m3:
      return "ncclFloat8e4m3";
    case ncclFloat8e5m2:
      return "ncclFloat8e5m2";
    default:
      return "Unknown";  // as the real library calls ncclUint8
  }
}

const char* short_type_name(ncclDataType_t t) {
  static const char* const kNames[] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                       "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
  return kNames[static_cast<int>(t)];
}

size_t type_size(ncclDataType_t t) {
  switch (t) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

const char* operator_name(ncclRedOp_t op) {
  static const char* const kNames[] = {"Sum", "Prod", "Max", "Min", "Avg"};
  return kNames[static_cast<int>(op)];
}

}  // namespace standin
