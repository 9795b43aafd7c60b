// Register allocation: rows of the frame are shared by registers that never live together.
#include <algorithm>

#include "decoder.hpp"

namespace standin::ptx {

// Liveness over the control flow of one thread, then a linear scan per width.
void Decoder::allocate() {
  u32 N = (u32)code.size(), V = (u32)vsize.size();
  std::vector<u8> lead(N + 1, 0);
  lead[0] = 1;
  for (u32 i = 0; i < N; i++) {
    const Ins& I = code[i];
    if (I.kind == K_BRA) {
      lead[I.target] = 1;
      lead[i + 1] = 1;
    } else if (I.kind == K_BRX) {
      for (u32 t : f->tables[I.target]) lead[t] = 1;
      lead[i + 1] = 1;
    } else if (I.kind == K_RET || I.kind == K_EXIT)
      lead[i + 1] = 1;
  }
  std::vector<u32> start, blk(N);
  for (u32 i = 0; i < N; i++) {
    if (lead[i]) start.push_back(i);
    blk[i] = (u32)start.size() - 1;
  }
  u32 nb = (u32)start.size();
  start.push_back(N);
  constexpr u32 UNSET = 0xffffffffu;
  std::vector<u32> lo(V, UNSET), hi(V, 0), home(V, UNSET);
  std::vector<u8> global(V, 0);
  auto order = refs;  // already in instruction order; uses come before definitions within one instruction
  std::stable_sort(order.begin(), order.end(),
                   [](const Ref& a, const Ref& b) { return a.ins != b.ins ? a.ins < b.ins : a.def < b.def; });
  for (auto& r : order) {
    u32 pos = r.ins * 2 + r.def;
    if (lo[r.v] == UNSET) {
      home[r.v] = blk[r.ins];
      if (!r.def) global[r.v] = 1;
    } else if (home[r.v] != blk[r.ins])
      global[r.v] = 1;
    lo[r.v] = std::min(lo[r.v], pos);
    hi[r.v] = std::max(hi[r.v], pos);
  }
  std::vector<u32> gid(V, UNSET), gl;
  for (u32 v = 0; v < V; v++)
    if (global[v] && lo[v] != UNSET) {
      gid[v] = (u32)gl.size();
      gl.push_back(v);
    }
  u32 words = ((u32)gl.size() + 63) / 64;
  if (words) {
    std::vector<u64> gen((size_t)nb * words), kill((size_t)nb * words), in((size_t)nb * words), out((size_t)nb * words);
    for (auto& r : order) {
      u32 g = gid[r.v];
      if (g == UNSET) continue;
      size_t w = (size_t)blk[r.ins] * words + g / 64;
      u64 bit = 1ull << (g & 63);
      if (!r.def) {
        if (!(kill[w] & bit)) gen[w] |= bit;
      } else
        kill[w] |= bit;
    }
    std::vector<std::vector<u32>> succ(nb);
    for (u32 b = 0; b < nb; b++) {
      const Ins& I = code[start[b + 1] - 1];
      bool next = true;
      if (I.kind == K_BRA) {
        succ[b].push_back(blk[I.target]);
        next = I.guard != NONE;
      } else if (I.kind == K_BRX) {
        for (u32 t : f->tables[I.target]) succ[b].push_back(blk[t]);
        next = I.guard != NONE;
      } else if (I.kind == K_RET || I.kind == K_EXIT)
        next = I.guard != NONE;
      if (next && b + 1 < nb) succ[b].push_back(b + 1);
    }
    std::vector<std::vector<u32>> pred(nb);
    for (u32 b = 0; b < nb; b++)
      for (u32 s : succ[b]) pred[s].push_back(b);
    std::vector<u32> work;
    std::vector<u8> queued(nb, 1);
    for (u32 b = 0; b < nb; b++) work.push_back(b);
    while (!work.empty()) {
      u32 b = work.back();
      work.pop_back();
      queued[b] = 0;
      bool ch = false;
      u64 *o = &out[(size_t)b * words], *i = &in[(size_t)b * words];
      for (u32 s : succ[b]) {
        u64* q = &in[(size_t)s * words];
        for (u32 k = 0; k < words; k++) o[k] |= q[k];
      }
      for (u32 k = 0; k < words; k++) {
        u64 x = gen[(size_t)b * words + k] | (o[k] & ~kill[(size_t)b * words + k]);
        if (x != i[k]) {
          i[k] = x;
          ch = true;
        }
      }
      if (ch)
        for (u32 q : pred[b])
          if (!queued[q]) {
            queued[q] = 1;
            work.push_back(q);
          }
    }
    for (u32 b = 0; b < nb; b++) {
      u32 s = start[b] * 2, t = start[b + 1] * 2 - 1;
      for (u32 k = 0; k < words; k++) {
        for (u64 x = in [(size_t)b * words + k]; x; x &= x - 1) {
          u32 v = gl[k * 64 + __builtin_ctzll(x)];
          lo[v] = std::min(lo[v], s);
          hi[v] = std::max(hi[v], s);
        }
        for (u64 x = out[(size_t)b * words + k]; x; x &= x - 1) {
          u32 v = gl[k * 64 + __builtin_ctzll(x)];
          hi[v] = std::max(hi[v], t);
          lo[v] = std::min(lo[v], t);
        }
      }
    }
  }
  std::vector<u32> byl;
  for (u32 v = 0; v < V; v++)
    if (lo[v] != UNSET) byl.push_back(v);
  std::sort(byl.begin(), byl.end(), [&](u32 a, u32 b) { return lo[a] < lo[b]; });
  const int cls[] = {16, 8, 4, 2, 0};
  std::vector<u32> slot(V, 0);
  u32 top = 0;
  for (int c : cls) {
    std::vector<std::pair<u32, u32>> active;  // heap by end: (hi, slot)
    std::vector<u32> freel;
    u32 n = 0;
    auto cmp = [](const std::pair<u32, u32>& a, const std::pair<u32, u32>& b) { return a.first > b.first; };
    for (u32 v : byl) {
      if (vsize[v] != c) continue;
      while (!active.empty() && active.front().first < lo[v]) {
        freel.push_back(active.front().second);
        std::pop_heap(active.begin(), active.end(), cmp);
        active.pop_back();
      }
      u32 s;
      if (!freel.empty()) {
        s = freel.back();
        freel.pop_back();
      } else
        s = n++;
      active.push_back({hi[v], s});
      std::push_heap(active.begin(), active.end(), cmp);
      slot[v] = s;
    }
    u32 bytes = c ? c * 32 : 4;
    for (u32 v : byl)
      if (vsize[v] == c) slot[v] = top + slot[v] * bytes;
    top += n * bytes;
    top = (top + 63) / 64 * 64;
  }
  f->reg_bytes = top;
  for (auto& r : refs) {
    if (r.slot == 14) continue;
    if (r.slot == 15)
      code[r.ins].guard = slot[r.v];
    else
      code[r.ins].o[r.slot] = slot[r.v];
  }
}

}  // namespace standin::ptx
