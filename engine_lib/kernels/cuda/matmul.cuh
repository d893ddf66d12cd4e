// A block's share of one matrix times all columns. Weights are the M side of mma.m16n8k16, columns (rows of the batch)
// the N side. K is split in eighths and over nothing else, and summed in one fixed order, so a column's result never depends
// on how many others there are, or where it stands among them.
#pragma once
#include "weights.cuh"

__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// K inputs, TILES tiles of 16 outputs in each block that takes part.
template <int K_, int TILES_> struct Matrix {
  static constexpr int K = K_, TILES = TILES_, PAIRS = K / 32 / WARPS;  // pairs of k-tiles of a warp
  static constexpr int CHUNKS = TILES % 3 == 0 ? 3 : 1;                 // taken together
  static constexpr int GROUP = CHUNKS * 4 / TILES, GROUPS = PAIRS / GROUP;  // k-pairs that they cover
  static_assert(GROUPS * GROUP == PAIRS && CHUNKS * 8 == GROUP * 2 * TILES, "chunks must end with k-pairs");
};
template <class M, int NT> constexpr int partial_stride = M::TILES * 16 * NT * 8 + 8;  // floats of one warp's sums, padded
template <class M, int NT> constexpr int sums_floats = WARPS * (partial_stride<M, NT> + NT * 8);  // squares after them

// Partial sums of every warp into `sums`, and behind them of the squares of the input when that is to be normalised. `x` has NX column tiles, of which NT are used; columns past `count` are not waited for.
template <class M, int NT, int NX, bool NORM, class S>
__device__ __forceinline__ void multiply(S& stream, const uint2* x, uint32_t tag, int count, float* sums,
                                         uint32_t zero, Waiting& waiting) {
  constexpr int TILES = M::TILES, N = NT * 8, GROUP = M::GROUP, GROUPS = M::GROUPS;
  constexpr bool WIDE = NT >= 4;  // smaller steps, to stay within the registers
  constexpr int STEP = WIDE ? 1 : GROUP, F = STEP * NT;  // k-pairs of activations asked for together
  const int warp = thread_() >> 5, lane = thread_() & 31;
  float sum[TILES][NT][4], square[NT];
#pragma unroll
  for (int b = 0; b < NT; b++) square[b] = 0.f;
#pragma unroll
  for (int a = 0; a < TILES; a++)
#pragma unroll
    for (int b = 0; b < NT; b++)
#pragma unroll
      for (int c = 0; c < 4; c++) sum[a][b][c] = 0.f;
  const uint4* place = reinterpret_cast<const uint4*>(x) + (uint64_t)warp * M::PAIRS * NX * 64 + lane;
  uint4 low[F], high[F];
#pragma unroll
  for (int i = 0; i < F; i++) low[i] = high[i] = make_uint4(0, tag, 0, tag);
  auto ask = [&]() {
#pragma unroll
    for (int i = 0; i < F; i++)
      if ((i % NT) * 8 + (lane >> 2) < count) {
        const uint4* at = place + ((i / NT) * NX + i % NT) * 64;
        low[i] = load4(at);
        high[i] = load4(at + 32);
      }
  };
  ask();
#pragma unroll 1
  for (int g = 0; g < GROUPS; g++) {
    uint4 w[WIDE ? 8 : M::CHUNKS * 8];
    if (!WIDE) {
#pragma unroll
      for (int c = 0; c < M::CHUNKS; c++) stream.take(w + (WIDE ? 0 : 8 * c), zero);
    }
#pragma unroll
    for (int r = 0; r < GROUP / STEP; r++) {
      int tries = 0;
#pragma unroll 1
      while (true) {
        uint32_t missing = 0;
#pragma unroll
        for (int i = 0; i < F; i++) missing |= (low[i].y ^ tag) | (low[i].w ^ tag) | (high[i].y ^ tag) | (high[i].w ^ tag);
        if (!missing || hopeless(tries, waiting)) break;
        ask();
      }
      __syncwarp();
      uint32_t b[F][4];
#pragma unroll
      for (int i = 0; i < F; i++) { b[i][0] = low[i].x; b[i][1] = low[i].z; b[i][2] = high[i].x; b[i][3] = high[i].z; }
      place += STEP * NX * 64;
      if (r + 1 < GROUP / STEP || g + 1 < GROUPS) ask();
#pragma unroll
      for (int kk = 0; kk < STEP; kk++) {
        if (NORM) {
#pragma unroll
          for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
              const float2 v = unpack(b[kk * NT + n][e]);
              square[n] = fmaf(v.x, v.x, fmaf(v.y, v.y, square[n]));
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            const int i = ((r * STEP + kk) * 2 + h) * TILES + t;
            if (WIDE && i % 8 == 0) stream.take(w, zero);
#pragma unroll
            for (int n = 0; n < NT; n++) mma(sum[t][n], w[WIDE ? i % 8 : i], b[kk * NT + n][h * 2], b[kk * NT + n][h * 2 + 1]);
          }
      }
    }
  }
  float* const mine = sums + warp * partial_stride<M, NT>;
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float* q = mine + (t * 16 + (lane >> 2)) * N + n * 8 + (lane & 3) * 2;
      *reinterpret_cast<float2*>(q) = make_float2(sum[t][n][0], sum[t][n][1]);
      *reinterpret_cast<float2*>(q + 8 * N) = make_float2(sum[t][n][2], sum[t][n][3]);
    }
  if (NORM) {
    float* const squares = sums + WARPS * partial_stride<M, NT>;
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float s = square[n];
      s += __shfl_xor_sync(ALL_LANES, s, 1);
      s += __shfl_xor_sync(ALL_LANES, s, 2);
      if ((lane & 3) == 0) squares[warp * N + n * 8 + (lane >> 2)] = s;
    }
  }
  __syncthreads();
}

__device__ __forceinline__ float sum_of_4(float s) {
  s += __shfl_xor_sync(ALL_LANES, s, 1);
  return s + __shfl_xor_sync(ALL_LANES, s, 2);
}

// The warps' partial sums added up, four lanes an output, and handed on: finish(tile, i, n, v) with v[0], v[1] the
// outputs 2i and 2i + 1 of the tile; of an interleaved gate and up matrix v[0], v[1] are gates and v[2], v[3] their ups.
template <class M, int NT, bool NORM, bool GATED, class F>
__device__ __forceinline__ void finish_product(const float* sums, int count, F finish) {
  constexpr int N = NT * 8, HALVES = GATED ? 4 : 8, OUTPUTS = M::TILES * HALVES, V = GATED ? 4 : 2;
  const float* const squares = sums + WARPS * partial_stride<M, NT>;
  const int bits = count > 1 ? 32 - __clz(count - 1) : 0;  // columns rounded up to a power of two
  const int work = (OUTPUTS << bits) * 4;
#pragma unroll 1
  for (int t = thread_(); t < ((work + 31) & ~31); t += THREADS) {
    const int q = t & 3, n = (t >> 2) & ((1 << bits) - 1), output = (t >> 2) >> bits;
    const int known = output < OUTPUTS ? output : 0, tile = known / HALVES, i = known % HALVES;
    float v[V], s = 0;
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = 0;
#pragma unroll
    for (int k = 0; k < WARPS / 4; k++) {
      const float* r = sums + (k * 4 + q) * partial_stride<M, NT> + (tile * 16 + 2 * i) * N + n;
      v[0] += r[0]; v[1] += r[N];
      if (GATED) { v[2] += r[8 * N]; v[3] += r[9 * N]; }
      if (NORM) s += squares[(k * 4 + q) * N + n];
    }
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = sum_of_4(v[j]);
    if (NORM) {
      const float scale = rsqrtf(sum_of_4(s) * (1.f / M::K) + EPS);
#pragma unroll
      for (int j = 0; j < V; j++) v[j] *= scale;
    }
    if (q == 0 && n < count && output < OUTPUTS) finish(tile, i, n, v);
  }
}
__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.f + __expf(-gate)) * up; }
