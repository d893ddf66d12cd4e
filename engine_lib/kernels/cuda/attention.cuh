// Attention of the talker over its cache, and of the code predictor over the few positions of its frame.
#pragma once
#include "matmul.cuh"

constexpr int HEADS = 16, KV_HEADS = 8, HEAD_DIM = 128;
// A unit of work covers SPAN cache positions, in rounds. It depends on the position alone, never on the batch.
constexpr int ROUND = 128;
static_assert(SPAN == 2 * ROUND, "a unit is two rounds");
constexpr int PART_WORDS = HEAD_DIM + 2;  // of a unit's result for one head: weighted values, the maximum, the sum
constexpr float LOG2_SCALE = 0.08838834764831845f * 1.4426950408889634f;  // 1 / sqrt(128), for exponents to base 2
constexpr float LOWEST = -1e30f;

// One position of one stream that passes through the talker in this launch.
struct Column {
  const bf16* side;  // an embedding of a cloned voice to add, or null
  int slot, position;
  int first, base;  // positions `first`.. of this stream pass in this launch too, in the columns from `base` on
  int text, code;   // ids to embed: text NOTHING for none; code FED_BACK for the stream's latest frame
  int units;        // units of attention of all columns before
  int unused;
};

// Norm and rotation of one head that a warp holds as lane -> dimensions 2l, 2l + 1, 64 + 2l, 65 + 2l.
struct Turn { float2 low, high; float4 angles; };
__device__ __forceinline__ Turn load_turn(const float* weight, const float2* rotations, int lane) {
  Turn t;
  t.low = *reinterpret_cast<const float2*>(weight + 2 * lane);
  t.high = *reinterpret_cast<const float2*>(weight + 64 + 2 * lane);
  t.angles = *reinterpret_cast<const float4*>(rotations + 2 * lane);
  return t;
}
__device__ __forceinline__ void turn(float (&q)[4], const Turn& t) {
  const float scale = rsqrtf(warp_sum(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]) * (1.f / HEAD_DIM) + EPS);
  const float a0 = q[0] * scale * t.low.x, a1 = q[1] * scale * t.low.y;
  const float b0 = q[2] * scale * t.high.x, b1 = q[3] * scale * t.high.y;
  q[0] = a0 * t.angles.x - b0 * t.angles.y; q[1] = a1 * t.angles.z - b1 * t.angles.w;
  q[2] = b0 * t.angles.x + a0 * t.angles.y; q[3] = b1 * t.angles.z + a1 * t.angles.w;
}
__device__ __forceinline__ void receive_head(const uint2* head, uint32_t tag, int lane, float (&q)[4], Waiting& waiting) {
  int tries = 0;
  uint2 a, b;
  do { a = load2(head + lane); b = load2(head + 32 + lane); } while ((a.y != tag || b.y != tag) && !hopeless(tries, waiting));
  const float2 low = unpack(a.x), high = unpack(b.x);
  q[0] = low.x; q[1] = low.y; q[2] = high.x; q[3] = high.y;
}

struct Cache { bf16 *keys, *values; };  // of one layer, slot and head: [positions][HEAD_DIM]

// A warp's part of the softmax of one head: the largest score, the sum of weights, and of the weighted values the 16
// dimensions that this lane holds.
struct Weighted {
  float most, sum, value[16];
  // `scores` of this lane's positions, which its group of eight lanes shares; those not `seen` count for nothing. The
  // second four are of the second round, idle unless `longer`.
  __device__ __forceinline__ void take(const float (&scores)[8], const bool (&seen)[8], const uint4 (&values)[8][2], bool longer) {
    most = LOWEST; sum = 0;
#pragma unroll
    for (int s = 0; s < 8; s++) if (seen[s]) most = fmaxf(most, scores[s]);
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 8));
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 16));
#pragma unroll
    for (int d = 0; d < 16; d++) value[d] = 0;
#pragma unroll
    for (int s = 0; s < 8; s++) {
      if (s == 4 && !longer) break;
      const float weight = seen[s] ? exp2f(scores[s] - most) : 0.f;
      const uint32_t v[8] = {values[s][0].x, values[s][0].y, values[s][0].z, values[s][0].w, values[s][1].x, values[s][1].y, values[s][1].z, values[s][1].w};
      sum += weight;
#pragma unroll
      for (int d = 0; d < 8; d++) {
        const float2 f = unpack(v[d]);
        value[2 * d] = fmaf(f.x, weight, value[2 * d]);
        value[2 * d + 1] = fmaf(f.y, weight, value[2 * d + 1]);
      }
    }
#pragma unroll
    for (int o = 8; o < 32; o <<= 1) {
      sum += __shfl_xor_sync(ALL_LANES, sum, o);
#pragma unroll
      for (int d = 0; d < 16; d++) value[d] += __shfl_xor_sync(ALL_LANES, value[d], o);
    }
  }
};

// One unit: the two query heads of a kv head of one column, over the SPAN of positions number `span`. Positions before
// `column.first` come from the cache; the others from this launch's projections `qkv`, normalised and rotated here.
// The unit that holds the column's own position writes its key and value into the cache. work: shared memory for
// 8 * 2 * 128 floats and 512 bytes a column; scratch: 288 floats.
template <int NX>
__device__ __forceinline__ void attend(const Column& column, int number, int kv_head, int span, const Cache& cache,
                                       const uint2* qkv, uint32_t tag_qkv, const float* q_norm, const float* k_norm,
                                       const float2* rotations, uint32_t* out, uint32_t mark, uint2* parts,
                                       uint32_t tag_parts, float* work, float* scratch, Waiting& waiting) {
  const int warp = thread_() >> 5, lane = thread_() & 31, group = lane >> 3, l8 = lane & 7;
  const int begin = span * SPAN, own = column.position, first = column.first;
  float *queries = scratch, *sums = scratch + 256, *partial = work;
  uint32_t* fresh = reinterpret_cast<uint32_t*>(work + WARPS * 2 * HEAD_DIM);  // [columns][key 64 words, value 64 words]
  const int low = max(first, begin), high = min(own, begin + SPAN - 1);
  const bool longer = high >= begin + ROUND;  // there is a second round
  auto position_of = [&](int s) { return begin + (s >> 2) * ROUND + warp * 16 + (s & 3) * 4 + group; };
  uint4 keys[8][2], values[8][2];  // this lane's four positions of each round
#pragma unroll
  for (int s = 0; s < 8; s++) {
    keys[s][0] = keys[s][1] = values[s][0] = values[s][1] = make_uint4(0, 0, 0, 0);
    if (position_of(s) < first) {
      const uint4* at = reinterpret_cast<const uint4*>(cache.keys + (uint64_t)position_of(s) * HEAD_DIM + l8 * 16);
      keys[s][0] = at[0]; keys[s][1] = at[1];
      at = reinterpret_cast<const uint4*>(cache.values + (uint64_t)position_of(s) * HEAD_DIM + l8 * 16);
      values[s][0] = at[0]; values[s][1] = at[1];
    }
  }
#pragma unroll 1
  for (int task = warp; task < 2 + 2 * max(high - low + 1, 0); task += WARPS) {  // two queries, then keys and values in turn
    const bool query = task < 2;
    const int position = query ? own : low + ((task - 2) >> 1), kind = query ? 0 : 1 + (task & 1);
    const int source = position == own ? number : column.base + position - first;
    const int head = query ? (kv_head * 2 + task) * 64 : kind == 1 ? HEADS * 64 + kv_head * 64 : (HEADS + KV_HEADS) * 64 + kv_head * 64;
    const Turn way = load_turn(query ? q_norm : k_norm, rotations + (uint64_t)position * 64, lane);
    float q[4];
    receive_head(qkv + (uint64_t)source * (HEADS + 2 * KV_HEADS) * 64 + head, tag_qkv, lane, q, waiting);
    __syncwarp();
    if (kind != 2) turn(q, way);
    if (query) {
      float* to = queries + task * HEAD_DIM;
      to[2 * lane] = q[0] * LOG2_SCALE; to[2 * lane + 1] = q[1] * LOG2_SCALE;
      to[64 + 2 * lane] = q[2] * LOG2_SCALE; to[65 + 2 * lane] = q[3] * LOG2_SCALE;
    } else {
      const uint32_t a = pack(q[0], q[1]), b = pack(q[2], q[3]);
      uint32_t* to = fresh + (position - low) * HEAD_DIM + (kind - 1) * 64;
      to[lane] = a; to[32 + lane] = b;
      if (position == own) {
        uint32_t* kept = reinterpret_cast<uint32_t*>((kind == 1 ? cache.keys : cache.values) + (uint64_t)own * HEAD_DIM);
        kept[lane] = a; kept[32 + lane] = b;
      }
    }
  }
  __syncthreads();
  float a[8], b[8];
  bool seen[8];
  {
    float4 q0[4], q1[4];
#pragma unroll
    for (int d = 0; d < 4; d++) {
      q0[d] = *reinterpret_cast<float4*>(queries + l8 * 16 + 4 * d);
      q1[d] = *reinterpret_cast<float4*>(queries + HEAD_DIM + l8 * 16 + 4 * d);
    }
#pragma unroll
    for (int s = 0; s < 8; s++) {
      a[s] = b[s] = 0; seen[s] = position_of(s) <= high;
      if (s >= 4 && !longer) continue;
      if (position_of(s) >= first && seen[s]) {
        const uint4* kept = reinterpret_cast<const uint4*>(fresh + (position_of(s) - low) * HEAD_DIM + l8 * 8);
        keys[s][0] = kept[0]; keys[s][1] = kept[1]; values[s][0] = kept[16]; values[s][1] = kept[17];
      }
      const uint32_t k[8] = {keys[s][0].x, keys[s][0].y, keys[s][0].z, keys[s][0].w, keys[s][1].x, keys[s][1].y, keys[s][1].z, keys[s][1].w};
#pragma unroll
      for (int d = 0; d < 4; d++) {
        const float2 f = unpack(k[2 * d]), g = unpack(k[2 * d + 1]);
        a[s] = fmaf(f.x, q0[d].x, fmaf(f.y, q0[d].y, fmaf(g.x, q0[d].z, fmaf(g.y, q0[d].w, a[s]))));
        b[s] = fmaf(f.x, q1[d].x, fmaf(f.y, q1[d].y, fmaf(g.x, q1[d].z, fmaf(g.y, q1[d].w, b[s]))));
      }
#pragma unroll
      for (int o = 1; o < 8; o <<= 1) { a[s] += __shfl_xor_sync(ALL_LANES, a[s], o); b[s] += __shfl_xor_sync(ALL_LANES, b[s], o); }
    }
  }
  Weighted one, two;
  one.take(a, seen, values, longer);
  two.take(b, seen, values, longer);
  if (group == 0) {
#pragma unroll
    for (int d = 0; d < 16; d++) {
      partial[(warp * 2) * HEAD_DIM + l8 * 16 + d] = one.value[d];
      partial[(warp * 2 + 1) * HEAD_DIM + l8 * 16 + d] = two.value[d];
    }
    if (l8 == 0) { sums[warp * 4] = one.most; sums[warp * 4 + 1] = one.sum; sums[warp * 4 + 2] = two.most; sums[warp * 4 + 3] = two.sum; }
  }
  __syncthreads();
  if (warp < 4) {  // half a head each
    const int h = warp >> 1, d = (warp & 1) * 64 + 2 * lane;
    float most = LOWEST, sum = 0, x = 0, y = 0;
#pragma unroll
    for (int k = 0; k < WARPS; k++) most = fmaxf(most, sums[k * 4 + h * 2]);
#pragma unroll
    for (int k = 0; k < WARPS; k++) {
      const float f = exp2f(sums[k * 4 + h * 2] - most);
      sum += f * sums[k * 4 + h * 2 + 1];
      x += f * partial[(k * 2 + h) * HEAD_DIM + d];
      y += f * partial[(k * 2 + h) * HEAD_DIM + d + 1];
    }
    const int head = kv_head * 2 + h;
    if (own < SPAN) {
      send_input(out + fragment<NX>(head * HEAD_DIM + d, number), x / sum, y / sum, mark);
    } else {
      uint2* part = parts + ((uint64_t)(number * HEADS + head) * MOST_SPANS + span) * PART_WORDS;
      send_pair(part + d, x, y, tag_parts);
      if ((warp & 1) == 0 && lane == 0) send_pair(part + HEAD_DIM, most, sum, tag_parts);
    }
  }
  __syncthreads();
}

// A warp adds up the units of one head of a column that reaches beyond one SPAN, in the order of the positions.
template <int NX>
__device__ __forceinline__ void merge_spans(const Column& column, int number, int head, const uint2* parts, uint32_t tag,
                                            uint32_t* out, uint32_t mark, Waiting& waiting) {
  const int lane = thread_() & 31;
  float most = LOWEST, sum = 0, v[4] = {0, 0, 0, 0};
  const uint2* part = parts + (uint64_t)(number * HEADS + head) * MOST_SPANS * PART_WORDS;
#pragma unroll 1
  for (int span = 0; span <= column.position / SPAN; span++, part += PART_WORDS) {
    int tries = 0;
    uint4 a, b, c;
    do {
      a = load4(part + 2 * lane); b = load4(part + 64 + 2 * lane); c = load4(part + HEAD_DIM);
    } while ((((a.y ^ tag) | (a.w ^ tag) | (b.y ^ tag) | (b.w ^ tag) | (c.y ^ tag) | (c.w ^ tag)) != 0) && !hopeless(tries, waiting));
    __syncwarp();
    const float theirs = __uint_as_float(c.x), higher = fmaxf(most, theirs);
    const float old = exp2f(most - higher), now = exp2f(theirs - higher);
    most = higher; sum = sum * old + __uint_as_float(c.z) * now;
    v[0] = v[0] * old + __uint_as_float(a.x) * now; v[1] = v[1] * old + __uint_as_float(a.z) * now;
    v[2] = v[2] * old + __uint_as_float(b.x) * now; v[3] = v[3] * old + __uint_as_float(b.z) * now;
  }
  send_input(out + fragment<NX>(head * HEAD_DIM + 2 * lane, number), v[0] / sum, v[1] / sum, mark);
  send_input(out + fragment<NX>(head * HEAD_DIM + 64 + 2 * lane, number), v[2] / sum, v[3] / sum, mark);
}

// The predictor's attention: a warp for one query head of one row at `position`; its keys and values of this frame are
// its own, in `memory` [positions][key, value][32 lanes].
template <int NX>
__device__ __forceinline__ void attend_frame(int row, int head, int position, uint2* memory, const uint2* qkv, uint32_t tag_qkv,
                                             const float* q_norm, const float* k_norm, const float2* rotations, uint32_t* out,
                                             uint32_t mark, Waiting& waiting) {
  const int lane = thread_() & 31, kv_head = head >> 1;
  const Turn q_way = load_turn(q_norm, rotations + position * 64, lane), k_way = load_turn(k_norm, rotations + position * 64, lane);
  uint2 keys[15], values[15];
#pragma unroll
  for (int j = 0; j < 15; j++) {
    keys[j] = values[j] = make_uint2(0, 0);
    if (j < position) { keys[j] = memory[j * 64 + lane]; values[j] = memory[j * 64 + 32 + lane]; }
  }
  const uint2* q_at = qkv + (uint64_t)row * (HEADS + 2 * KV_HEADS) * 64 + head * 64 + lane;
  const uint2* k_at = qkv + (uint64_t)row * (HEADS + 2 * KV_HEADS) * 64 + HEADS * 64 + kv_head * 64 + lane;
  const uint2* v_at = k_at + KV_HEADS * 64;
  uint2 r[6];
  int tries = 0;
#pragma unroll 1
  while (true) {
    r[0] = load2(q_at); r[1] = load2(q_at + 32); r[2] = load2(k_at); r[3] = load2(k_at + 32); r[4] = load2(v_at); r[5] = load2(v_at + 32);
    uint32_t missing = 0;
#pragma unroll
    for (int i = 0; i < 6; i++) missing |= r[i].y ^ tag_qkv;
    if (!missing || hopeless(tries, waiting)) break;
  }
  __syncwarp();
  float2 f = unpack(r[0].x), g = unpack(r[1].x);
  float q[4] = {f.x, f.y, g.x, g.y};
  f = unpack(r[2].x); g = unpack(r[3].x);
  float k[4] = {f.x, f.y, g.x, g.y};
  turn(q, q_way); turn(k, k_way);
  const uint2 own_key = make_uint2(pack(k[0], k[1]), pack(k[2], k[3])), own_value = make_uint2(r[4].x, r[5].x);
  float s[16];
#pragma unroll
  for (int j = 0; j < 16; j++) {
    const uint2 c = j < 15 && j < position ? keys[j < 15 ? j : 0] : own_key;
    f = unpack(c.x); g = unpack(c.y);
    s[j] = q[0] * f.x + q[1] * f.y + q[2] * g.x + q[3] * g.y;
  }
  // A transposing reduction: afterwards a lane holds the score of position lane / 2.
#pragma unroll
  for (int z = 0; z < 4; z++) {
    const int o = 8 >> z;
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (j < o) {
        const bool upper = lane & (o * 2);
        const float theirs = upper ? s[j] : s[j + o], mine = upper ? s[j + o] : s[j];
        s[j] = mine + __shfl_xor_sync(ALL_LANES, theirs, o * 2);
      }
  }
  const int place = lane >> 1;
  float score = s[0] + __shfl_xor_sync(ALL_LANES, s[0], 1);
  score = place <= position ? score * LOG2_SCALE : LOWEST;
  float most = score;
#pragma unroll
  for (int o = 2; o < 32; o <<= 1) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, o));
  const float weight = place <= position ? exp2f(score - most) : 0.f;
  float sum = weight;
#pragma unroll
  for (int o = 2; o < 32; o <<= 1) sum += __shfl_xor_sync(ALL_LANES, sum, o);
  float v[4] = {0, 0, 0, 0};
#pragma unroll
  for (int j = 0; j < 16; j++) {
    const float w = __shfl_sync(ALL_LANES, weight, 2 * j);
    const uint2 c = j < 15 && j < position ? values[j < 15 ? j : 0] : own_value;
    f = unpack(c.x); g = unpack(c.y);
    v[0] = fmaf(w, f.x, v[0]); v[1] = fmaf(w, f.y, v[1]); v[2] = fmaf(w, g.x, v[2]); v[3] = fmaf(w, g.y, v[3]);
  }
  const float scale = 1.f / sum;
  send_input(out + fragment<NX>(head * HEAD_DIM + 2 * lane, row), v[0] * scale, v[1] * scale, mark);
  send_input(out + fragment<NX>(head * HEAD_DIM + 64 + 2 * lane, row), v[2] * scale, v[3] * scale, mark);
  memory[position * 64 + lane] = own_key; memory[position * 64 + 32 + lane] = own_value;
}
