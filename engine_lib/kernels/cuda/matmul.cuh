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
// Where the sum of a row and a column lies in its row: tiles of columns swap places from row to row, so that what a warp
// writes together falls into all banks.
template <int NT> __device__ __forceinline__ int swapped(int row, int n) {
  return NT == 1 ? n : NT == 2 ? n ^ (row & 2) << 2 : n ^ (row & 3) << 3;
}
template <class M, int NT> constexpr int sums_floats = WARPS * (partial_stride<M, NT> + NT * 8);  // squares after them

// Partial sums of every warp into `sums`, and behind them of the squares of the input when that is to be normalised; both
// of the input as it was sent. `x` has NX column tiles, of which NT are used; columns past `count` are not waited for.
template <class M, int NT, int NX, bool NORM, class S>
__device__ __forceinline__ void multiply(S& stream, const uint32_t* x, uint32_t mark, int count, float* sums,
                                         uint32_t zero, Waiting& waiting) {
  constexpr int TILES = M::TILES, N = NT * 8, CHUNKS = M::CHUNKS;
  constexpr bool WIDE = NT >= 4;  // smaller steps, to stay within the registers
  // k-pairs of the input that are asked for together, since each time costs a trip through L2; of these, those that are
  // waited for together; and after how many k-pairs both they and chunks come anew.
  constexpr int STEP = WIDE ? 8 / NT : 4, TAKEN = WIDE ? 1 : STEP, ROUND = STEP > M::GROUP ? STEP : M::GROUP, F = STEP * NT;
  static_assert(M::PAIRS % ROUND == 0 && ROUND % STEP == 0 && ROUND % M::GROUP == 0, "rounds must end with a warp's share");
  constexpr int HELD = WIDE ? 8 : CHUNKS * 8;
  constexpr int CHAINS = TILES == 1 ? 2 : 1;  // a lone tile's even and odd k-tiles apart, or each would wait for the last
  const int warp = thread_() >> 5, lane = thread_() & 31;
  float sum[TILES * CHAINS][NT][4], square[NT][4];
#pragma unroll
  for (int b = 0; b < NT; b++)
#pragma unroll
    for (int c = 0; c < 4; c++) square[b][c] = 0.f;
#pragma unroll
  for (int a = 0; a < TILES * CHAINS; a++)
#pragma unroll
    for (int b = 0; b < NT; b++)
#pragma unroll
      for (int c = 0; c < 4; c++) sum[a][b][c] = 0.f;
  const uint4* place = reinterpret_cast<const uint4*>(x) + (uint64_t)warp * M::PAIRS * NX * 32 + lane;
  uint4 asked[F];
  auto ask = [&](int i, int pair) {
    if ((i % NT) * 8 + (lane >> 2) < count) asked[i] = load4(place + (pair * NX + i % NT) * 32);
  };
  auto differs = [&](int i) { return ((asked[i].x ^ mark) | (asked[i].y ^ mark) | (asked[i].z ^ mark) | (asked[i].w ^ mark)) & MARKS; };
#pragma unroll
  for (int i = 0; i < F; i++) { asked[i] = make_uint4(mark, mark, mark, mark); ask(i, i / NT); }
#pragma unroll 1
  for (int done = 0; done < M::PAIRS; done += ROUND) {
    uint4 w[HELD];
#pragma unroll
    for (int r = 0; r < ROUND; r += TAKEN) {
      const int first = r % STEP;  // where these pairs lie among those asked for
      if (!WIDE && r % M::GROUP == 0) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) stream.take(w + (WIDE ? 0 : 8 * c), zero);
      }
      int tries = 0;
#pragma unroll 1
      while (true) {
        uint32_t missing = 0;
#pragma unroll
        for (int i = first * NT; i < (first + TAKEN) * NT; i++) missing |= differs(i);
        if (!missing || hopeless(tries, waiting)) break;
#pragma unroll
        for (int i = 0; i < F; i++) {  // the others are hardly there either
          const int pair = r + (i / NT - first + STEP) % STEP;
          if (differs(i) && done + pair < M::PAIRS) ask(i, pair);
        }
      }
      __syncwarp();
      uint32_t b[TAKEN * NT][4];
#pragma unroll
      for (int i = 0; i < TAKEN * NT; i++) {
        const uint4& v = asked[first * NT + i];
        b[i][0] = v.x ^ mark; b[i][1] = v.y ^ mark; b[i][2] = v.z ^ mark; b[i][3] = v.w ^ mark;
      }
      if (done + r + STEP < M::PAIRS) {
#pragma unroll
        for (int i = 0; i < TAKEN * NT; i++) ask(first * NT + i, r + STEP + i / NT);
      }
#pragma unroll
      for (int kk = 0; kk < TAKEN; kk++) {
        if (!WIDE && kk && (r + kk) % M::GROUP == 0) {
#pragma unroll
          for (int c = 0; c < CHUNKS; c++) stream.take(w + (WIDE ? 0 : 8 * c), zero);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int low = h * 2, high = h * 2 + 1;
          if (NORM) {  // a tile's columns times themselves: their squares are on the diagonal
#pragma unroll
            for (int n = 0; n < NT; n++) {
              const uint32_t(&x)[4] = b[kk * NT + n];
              mma(square[n], make_uint4(x[low], 0, x[high], 0), x[low], x[high]);
            }
          }
#pragma unroll
          for (int t = 0; t < TILES; t++) {
            const int i = (((r + kk) % M::GROUP) * 2 + h) * TILES + t, chain = CHAINS == 2 ? h : t;
            if (WIDE && i % 8 == 0) stream.take(w, zero);
#pragma unroll
            for (int n = 0; n < NT; n++) mma(sum[chain][n], w[i % HELD], b[kk * NT + n][low], b[kk * NT + n][high]);
          }
        }
      }
    }
    place += ROUND * NX * 32;
  }
  if (CHAINS == 2) {
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int c = 0; c < 4; c++) sum[0][n][c] += sum[CHAINS - 1][n][c];
  }
  float* const mine = sums + warp * partial_stride<M, NT>;
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float* q = mine + (t * 16 + (lane >> 2)) * N + swapped<NT>(lane >> 2, n * 8 + (lane & 3) * 2);
      *reinterpret_cast<float2*>(q) = make_float2(sum[t][n][0], sum[t][n][1]);
      *reinterpret_cast<float2*>(q + 8 * N) = make_float2(sum[t][n][2], sum[t][n][3]);
    }
  if (NORM) {
    float* const squares = sums + WARPS * partial_stride<M, NT>;
#pragma unroll
    for (int n = 0; n < NT; n++)
      if ((lane & 3) == lane >> 3) squares[warp * N + n * 8 + (lane >> 2)] = lane >> 2 & 1 ? square[n][1] : square[n][0];
  }
  __syncthreads();
}

// The eight warps' partial sums added up in one fixed order: by four lanes, each with two of them, or by one.
template <int LANES> __device__ __forceinline__ float sum_up(const float* r, int stride, int q) {
  if (LANES == 4) {
    float s = r[q * stride] + r[(q + 4) * stride];
    s += __shfl_xor_sync(ALL_LANES, s, 1);
    return s + __shfl_xor_sync(ALL_LANES, s, 2);
  }
  return ((r[0] + r[4 * stride]) + (r[stride] + r[5 * stride])) + ((r[2 * stride] + r[6 * stride]) + (r[3 * stride] + r[7 * stride]));
}

// finish_product with LANES lanes an output and 1 << bits columns.
template <class M, int NT, bool NORM, bool GATED, int LANES, class F>
__device__ __forceinline__ void finish_by(const float* sums, int count, int bits, F finish) {
  constexpr int N = NT * 8, HALVES = GATED ? 4 : 8, OUTPUTS = M::TILES * HALVES, STRIDE = partial_stride<M, NT>;
  constexpr int SHIFT = LANES == 4 ? 2 : 0;
  const int work = (OUTPUTS << bits) * LANES, q = thread_() & (LANES - 1), n = (thread_() >> SHIFT) & ((1 << bits) - 1);
  float scale = GROW;
  if (NORM) scale *= rsqrtf(sum_up<LANES>(sums + WARPS * STRIDE + n, N, q) * (GROW * GROW / M::K) + EPS);
#pragma unroll 1
  for (int t = thread_(); t < ((work + 31) & ~31); t += THREADS) {
    const int output = t >> (SHIFT + bits), known = output < OUTPUTS ? output : 0, tile = known / HALVES, i = known % HALVES;
    const float* const r = sums + (tile * 16 + 2 * i) * N;
    const int even = swapped<NT>(2 * i, n), odd = N + swapped<NT>(2 * i + 1, n);
    float v[4];
    v[0] = sum_up<LANES>(r + even, STRIDE, q) * scale; v[1] = sum_up<LANES>(r + odd, STRIDE, q) * scale;
    if (GATED) { v[2] = sum_up<LANES>(r + 8 * N + even, STRIDE, q) * scale; v[3] = sum_up<LANES>(r + 8 * N + odd, STRIDE, q) * scale; }
    if (q == 0 && n < count && output < OUTPUTS) finish(tile, i, n, v);
  }
}

// The warps' partial sums added up and handed on: finish(tile, i, n, v) with v[0], v[1] the outputs 2i and 2i + 1 of the
// tile; of an interleaved gate and up matrix v[0], v[1] are gates and v[2], v[3] their ups.
template <class M, int NT, bool NORM, bool GATED, class F>
__device__ __forceinline__ void finish_product(const float* sums, int count, F finish) {
  const int bits = count > 1 ? 32 - __clz(count - 1) : 0;  // columns rounded up to a power of two
  finish_by<M, NT, NORM, GATED, NT == 1 ? 4 : 1>(sums, count, bits, finish);
}
__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.f + __expf(-gate)) * up; }
