// One code from a row's logits by that row's own rules; a whole block works on a row. The order of steps is the
// official one (model.md 3, "Code 0"), the random numbers are those of engine_lib/talker/random_numbers.py.
#pragma once
#include "protocol.cuh"

constexpr float BANNED = -3.0e38f;  // a logit that can't be chosen
constexpr uint64_t GAMMA = 0x9E3779B97F4A7C15ull;
constexpr int CODEBOOKS = 16;

struct Choice { float inverse_temperature, top_p, uniform; int top_k; bool greedy; };

__device__ __forceinline__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
__device__ __forceinline__ float uniform(uint64_t seed, int frame, int codebook) {
  const uint64_t address = (uint64_t)frame * CODEBOOKS + codebook;
  return (float)(mix(mix(seed + GAMMA) + (address + 1) * GAMMA) >> 40) * 0x1p-24f;
}

__device__ __forceinline__ float block_max(float v, float* scratch) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, o));
  if ((thread_() & 31) == 0) scratch[thread_() >> 5] = v;
  __syncthreads();
  v = scratch[thread_() & 7];
#pragma unroll
  for (int o = 4; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, o));
  return v;
}

// A threshold between lo and hi that k of all values reach, or else the largest that more of them do, to the last bit.
// Three are tried at a time.
template <int NE> __device__ __forceinline__ float reached_by(int k, const float (&v)[NE], float lo, float hi, float* scratch) {
  static_assert(NE * 32 < 1024, "a warp's count must fit into ten bits");
  const int warp = thread_() >> 5, lane = thread_() & 31;
  for (int round = 0; round < 64; round++) {
    const float quarter = fmaf(0.25f, hi - lo, lo), mid = fmaf(0.5f, hi - lo, lo), last = fmaf(0.75f, hi - lo, lo);
    if (!(mid > lo && mid < hi)) break;
    uint32_t counts = 0;
#pragma unroll
    for (int j = 0; j < NE; j++) counts += (v[j] >= quarter) + ((v[j] >= mid) << 10) + ((v[j] >= last) << 20);
    counts = __reduce_add_sync(ALL_LANES, counts);
    uint32_t* const place = reinterpret_cast<uint32_t*>(scratch) + (round & 1) * WARPS;  // in turn: spares a second barrier
    if (lane == 0) place[warp] = counts;
    __syncthreads();
    int above[3] = {0, 0, 0};
#pragma unroll
    for (int w = 0; w < WARPS; w++)
#pragma unroll
      for (int i = 0; i < 3; i++) above[i] += place[w] >> (10 * i) & 1023;
    if (above[1] == k) return mid;
    if (above[0] == k) return quarter;
    if (above[2] == k) return last;
    if (above[2] > k) lo = last;
    else if (above[1] > k) { lo = mid; hi = last; }
    else if (above[0] > k) { lo = quarter; hi = mid; }
    else hi = quarter;
  }
  return lo;
}

// The largest threshold between lo and hi below which at most `cut` of the mass lies, to the last bit.
template <int NE> __device__ __forceinline__ float above_mass(float cut, const float (&v)[NE], const float (&mass)[NE], float lo, float hi, float* scratch) {
  const int warp = thread_() >> 5, lane = thread_() & 31;
  for (int round = 0; round < 64; round++) {
    const float mid = 0.5f * lo + 0.5f * hi;
    if (!(mid > lo && mid < hi)) break;
    float below = 0;
#pragma unroll
    for (int j = 0; j < NE; j++) below += v[j] < mid ? mass[j] : 0.f;
    below = warp_sum(below);
    float* const place = scratch + (round & 1) * WARPS;
    if (lane == 0) place[warp] = below;
    __syncthreads();
    float whole = 0;
#pragma unroll
    for (int k = 0; k < WARPS; k++) whole += place[k];
    if (whole <= cut) lo = mid; else hi = mid;
  }
  return lo;
}

// v: a thread's NE consecutive logits, those of ids thread * NE and up. scratch: SAMPLING_FLOATS of shared memory. The
// same id comes back to every thread.
constexpr int SAMPLING_FLOATS = 80;
template <int NE> __device__ int choose(const float (&v)[NE], const Choice& choice, float* scratch) {
  const int t = thread_(), warp = t >> 5, lane = t & 31;
  int* chosen = reinterpret_cast<int*>(scratch + 72);
  float most = BANNED, least = -BANNED;
#pragma unroll
  for (int j = 0; j < NE; j++) { most = fmaxf(most, v[j]); if (v[j] > BANNED) least = fminf(least, v[j]); }
  most = block_max(most, scratch);
  if (choice.greedy) {
    if (t == 0) *chosen = THREADS * NE;
    __syncthreads();
    int first = THREADS * NE;
#pragma unroll
    for (int j = NE - 1; j >= 0; j--) if (v[j] == most) first = t * NE + j;
    if (first < THREADS * NE) atomicMin(chosen, first);
    __syncthreads();
    return *chosen;
  }
  least = -block_max(-least, scratch + 8);
  float threshold = least;
  if (choice.top_k < THREADS * NE) threshold = reached_by(choice.top_k, v, least, most, scratch + 16);
  float mass[NE], total = 0;
#pragma unroll
  for (int j = 0; j < NE; j++) {
    mass[j] = v[j] >= threshold && v[j] > BANNED ? __expf((v[j] - most) * choice.inverse_temperature) : 0.f;
    total += mass[j];
  }
  if (choice.top_p < 1.f) {  // drop the least likely while all of them together are at most 1 - top_p
    float whole = warp_sum(total);
    if (lane == 0) scratch[32 + warp] = whole;
    __syncthreads();
    whole = 0;
#pragma unroll
    for (int k = 0; k < WARPS; k++) whole += scratch[32 + k];
    const float keep = above_mass((1.f - choice.top_p) * whole, v, mass, threshold, most, scratch + 40);
    total = 0;
#pragma unroll
    for (int j = 0; j < NE; j++) { if (v[j] < keep) mass[j] = 0.f; total += mass[j]; }
  }
  float reached = total;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) { const float x = __shfl_up_sync(ALL_LANES, reached, o); if (lane >= o) reached += x; }
  if (lane == 31) scratch[64 + warp] = reached;
  if (t == 0) *chosen = 0;
  __syncthreads();
  float before = 0, all = 0;
#pragma unroll
  for (int k = 0; k < WARPS; k++) { if (k == warp) before = all; all += scratch[64 + k]; }
  float mine = __shfl_up_sync(ALL_LANES, reached, 1);
  if (lane == 0) mine = 0;
  const float goal = fminf(choice.uniform * all, all * 0.999999f);
  float sum = before + mine;
  if (goal >= sum && goal < before + reached) {
    int pick = -1;
#pragma unroll
    for (int j = 0; j < NE; j++) if (mass[j] > 0.f) { if (pick < 0 || goal >= sum) pick = j; sum += mass[j]; }
    *chosen = t * NE + pick;
  }
  __syncthreads();
  return *chosen;
}
