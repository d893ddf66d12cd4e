// One launch makes a frame of every row: the talker's layers for all columns, the first code, then the code predictor's
// sixteen positions with a code each. 128 blocks stay on the chip for the whole of it; see protocol.cuh for how they
// talk and weights.cuh for how the weights come in.
//
// A column is one position of one stream in the talker. The first `rows` columns sample; the others are earlier
// positions of prompts, which pass with them, so a new stream's prompt and first frame take one launch.
//
// Compiled in by -D: HIDDEN, INTERMEDIATE and LAYERS of the talker, EPS, SPAN of a unit of attention and MOST_SPANS of a
// slot, PARAMS_BYTES, and the tiles of eight columns that the launch has room for, TALKER_TILES and PREDICTOR_TILES. The
// predictor's sizes are those of every published checkpoint.
#include "attention.cuh"
#include "sampling.cuh"

constexpr int MOST_COLUMNS = 32;
constexpr int NOTHING = -1, FED_BACK = -2;
constexpr int VOCABULARY = 3072, CODES = 2048, SUPPRESSED = 1024;
constexpr int P_HIDDEN = 1024, P_INTERMEDIATE = 3072, P_LAYERS = 5;
constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM, ATTENDED = HEADS * HEAD_DIM;
constexpr int OWNERS = HIDDEN / 16, P_OWNERS = P_HIDDEN / 16;  // blocks that hold a part of the residual stream
constexpr int HEAD_BLOCKS = VOCABULARY / 32;
static_assert(OWNERS <= BLOCKS && INTERMEDIATE % (BLOCKS * 8) == 0, "sizes this kernel wasn't made for");

enum { FIRST_FRAME = 1, MAY_END = 2, GREEDY = 4, SUB_GREEDY = 8 };

// How one row samples. Temperatures come as their inverses.
struct Row {
  uint64_t seed;
  int frame, flags;
  float inverse_temperature, top_p, penalty;
  int top_k;
  float sub_inverse_temperature, sub_top_p;
  int sub_top_k, unused;
};

struct Params {
  const uint4* schedule;  // [3 kinds of blocks][512] legs of the weight stream
  const float *q_norm, *k_norm, *p_q_norm, *p_k_norm, *p_bias;
  const float2 *rotations, *p_rotations;  // [positions][64] cos, sin
  bf16 *keys, *values;                    // [LAYERS][slots][KV_HEADS][positions][HEAD_DIM]
  uint2* p_memory;                        // [P_LAYERS][row and head][16][key, value][32]
  const bf16 *text;                       // [text ids][HIDDEN], projected
  const bf16 *first_codes, *other_codes;  // [VOCABULARY][HIDDEN], [15][CODES][HIDDEN]
  const bf16 *p_first_codes, *p_other_codes;  // the same projected, with bias: [VOCABULARY][P_HIDDEN], [14][CODES][P_HIDDEN]
  int* latest;                            // [slots][16] codes of every stream's latest frame
  unsigned char* seen;                    // [slots][VOCABULARY] first codes that the stream has had
  int* out;                               // [MOST_COLUMNS][16] on the host
  uint32_t* epoch;                        // the last tag used
  int* failed;                            // on the host
  uint2 *qkv, *parts, *logits, *p_qkv, *p_logits;      // words with tags, two parities each
  uint32_t *x, *xa, *h, *a, *p_x, *p_xa, *p_h, *p_a;  // inputs of products, likewise
  float *seen_logits, *p_seen_logits;     // [rows][VOCABULARY], [15][rows][CODES] for tests, or null
  int columns, rows, slots, positions, end_of_speech, zero;
  Column column[MOST_COLUMNS];
  Row row[MOST_COLUMNS];
};

static_assert(sizeof(Params) == PARAMS_BYTES, "the host fills in another struct");

using Qkv = Matrix<HIDDEN, QKV / BLOCKS / 16>;
using Out = Matrix<ATTENDED, 1>;
using Gate = Matrix<HIDDEN, INTERMEDIATE / BLOCKS / 8>;
using Down = Matrix<INTERMEDIATE, 1>;
using Head = Matrix<HIDDEN, 2>;
using Project = Matrix<HIDDEN, 1>;
using PQkv = Matrix<P_HIDDEN, QKV / BLOCKS / 16>;
using PGate = Matrix<P_HIDDEN, P_INTERMEDIATE / BLOCKS / 8>;
using PDown = Matrix<P_INTERMEDIATE, 1>;
using PHead = Matrix<P_HIDDEN, 1>;

// Shared memory. With two rooms for sums in turn, no barrier is needed between one product's last read and the next
// one's first write; only wider launches have no memory for that.
template <int NT, int NP> struct Shape {  // column tiles of the talker and of the predictor
  static constexpr int N = NT * 8, PN = NP * 8, ROOMS = NT == 1 ? 2 : 1;
  static constexpr int SLOTS = NT <= 2 ? 5 : 3, SCRATCH = 288, ROOM = sums_floats<Gate, NT>;
  static constexpr int RINGS = WARPS * SLOTS * CHUNK_BYTES;
  static constexpr int FLOATS = ROOMS * ROOM + 16 * N + 16 * PN + SCRATCH;
  static constexpr int BYTES = RINGS + FLOATS * 4 + WARPS * SLOTS * 8;
  static_assert(NP <= NT && BYTES <= 227 * 1024, "every row is a column too");
  static_assert(ROOM * 4 >= WARPS * 2 * HEAD_DIM * 4 + N * HEAD_DIM * 4, "attention works in a room");
  static_assert(ROOM >= sums_floats<PGate, NP>, "the predictor's gates sum there too");
};

template <class Word> __device__ __forceinline__ Word* half(Word* words, int parity, int count) { return words + (uint64_t)parity * count; }

template <int NT, int NP> __device__ __forceinline__ void run(const Params& p) {
  using C = Shape<NT, NP>;
  constexpr int N = C::N, PN = C::PN;

  extern __shared__ __align__(128) char shared[];
  float* const rooms = reinterpret_cast<float*>(shared + C::RINGS);
  float* const residual = rooms + C::ROOMS * C::ROOM;  // [16][N]: this block's part of the talker's stream
  float* const p_residual = residual + 16 * N;
  float* const scratch = p_residual + 16 * PN;

  const int block = blockIdx.x, thread = threadIdx.x, columns = p.columns, rows = p.rows;
  uint32_t tag = *(volatile uint32_t*)p.epoch;
  Waiting waiting{false, p.failed};
  Stream<C::SLOTS> stream;
  stream.begin(shared, reinterpret_cast<char*>(scratch + C::SCRATCH),
               p.schedule + (block < P_OWNERS ? 0 : block < HEAD_BLOCKS ? 512 : 1024));
  int step = 0;  // its parity chooses among the words' halves
  float* sums = rooms;
  auto leave = [&]() {  // the room of these sums
    if (C::ROOMS == 2) sums = sums == rooms ? rooms + C::ROOM : rooms;
    else __syncthreads();
  };
  const bool samples = block >= BLOCKS - rows;  // the last block samples the first row, and so on
  const int row = BLOCKS - 1 - block;
  const bool owner = block < OWNERS, p_owner = block < P_OWNERS;

  // The input: text and codes of every column.
  for (int t = thread; t < 8 * N && owner; t += THREADS) {
    const int n = t % N, i = t / N, k = block * 16 + 2 * i;
    if (n >= columns) continue;
    const Column& column = p.column[n];
    float2 sum = make_float2(0, 0);
    auto add = [&](const bf16* table, int id, int width) {
      const float2 f = unpack(*reinterpret_cast<const uint32_t*>(table + (uint64_t)id * width + k));
      sum.x += f.x; sum.y += f.y;
    };
    if (column.side) add(column.side, 0, HIDDEN);
    if (column.text >= 0) add(p.text, column.text, HIDDEN);
    if (column.code >= 0) add(p.first_codes, column.code, HIDDEN);
    if (column.code == FED_BACK) {
      const int* codes = p.latest + column.slot * CODEBOOKS;
      add(p.first_codes, codes[0], HIDDEN);
#pragma unroll
      for (int g = 1; g < CODEBOOKS; g++) add(p.other_codes + (uint64_t)(g - 1) * CODES * HIDDEN, codes[g], HIDDEN);
    }
    residual[2 * i * N + n] = sum.x; residual[(2 * i + 1) * N + n] = sum.y;
    send_input(p.x + fragment<NT>(k, n), sum.x, sum.y, mark_of(0));
  }
  __syncthreads();

  // The talker.
  const int mine = (thread & 31) < columns ? p.column[thread & 31].units : 0x7fffffff;
  const Column& last = p.column[columns - 1];
  const int units = last.units + (last.position / SPAN + 1) * KV_HEADS;
#pragma unroll 1
  for (int layer = 0; layer < LAYERS; layer++, step++) {
    const int parity = step & 1;
    uint32_t *x = half(p.x, parity, HIDDEN / 2 * N), *next_x = half(p.x, parity ^ 1, HIDDEN / 2 * N), *xa = half(p.xa, parity, HIDDEN / 2 * N),
             *h = half(p.h, parity, INTERMEDIATE / 2 * N), *a = half(p.a, parity, ATTENDED / 2 * N);
    uint2* qkv = half(p.qkv, parity, QKV / 2 * N);
    const uint32_t mark = mark_of(step >> 1), next_mark = mark_of((step + 1) >> 1);
    multiply<Qkv, NT, NT, true>(stream, x, mark, columns, sums, p.zero, waiting);
    const uint32_t tag_qkv = ++tag;
    finish_product<Qkv, NT, true, false>(sums, columns, [&](int tile, int i, int n, const float* v) {
      send(qkv + n * (QKV / 2) + block_() * (QKV / BLOCKS / 2) + tile * 8 + i, pack(v[0], v[1]), tag_qkv);
    });
    leave();
    const uint32_t tag_parts = ++tag;
#pragma unroll 1
    for (int unit = block_(); unit < units; unit += BLOCKS) {
      const int n = __popc(__ballot_sync(ALL_LANES, mine <= unit)) - 1;
      const Column& column = p.column[n];
      const int place = unit - column.units, kv_head = place % KV_HEADS;
      const uint64_t at = (((uint64_t)layer * p.slots + column.slot) * KV_HEADS + kv_head) * p.positions * HEAD_DIM;
      attend<NT>(column, n, kv_head, place / KV_HEADS, Cache{p.keys + at, p.values + at}, qkv, tag_qkv, p.q_norm + layer * HEAD_DIM,
                 p.k_norm + layer * HEAD_DIM, p.rotations, a, mark, p.parts, tag_parts, sums, scratch, waiting);
    }
#pragma unroll 1
    for (int unit = (thread_() >> 5) * BLOCKS + BLOCKS - 1 - block_(); unit < columns * HEADS; unit += WARPS * BLOCKS) {
      const Column& column = p.column[unit / HEADS];
      if (column.position >= SPAN) merge_spans<NT>(column, unit / HEADS, unit % HEADS, p.parts, tag_parts, a, mark, waiting);
    }
    auto add = [&](uint32_t* words, uint32_t mark_words) {  // to the residual stream, and send it on
      return [=](int, int i, int n, const float* v) {
        const float low = residual[2 * i * N + n] + v[0], high = residual[(2 * i + 1) * N + n] + v[1];
        residual[2 * i * N + n] = low; residual[(2 * i + 1) * N + n] = high;
        send_input(words + fragment<NT>(block_() * 16 + 2 * i, n), low, high, mark_words);
      };
    };
    if (owner) {
      multiply<Out, NT, NT, false>(stream, a, mark, columns, sums, p.zero, waiting);
      finish_product<Out, NT, false, false>(sums, columns, add(xa, mark));
      leave();
    }
    multiply<Gate, NT, NT, true>(stream, xa, mark, columns, sums, p.zero, waiting);
    finish_product<Gate, NT, true, true>(sums, columns, [&](int tile, int i, int n, const float* v) {
      send_input(h + fragment<NT>((block_() * Gate::TILES + tile) * 8 + 2 * i, n), swiglu(v[0], v[2]), swiglu(v[1], v[3]), mark);
    });
    leave();
    if (owner) {
      multiply<Down, NT, NT, false>(stream, h, mark, columns, sums, p.zero, waiting);
      finish_product<Down, NT, false, false>(sums, columns, add(next_x, next_mark));
      leave();
    }
  }
  const uint32_t* const state = half(p.x, step & 1, HIDDEN / 2 * N);
  const uint32_t mark_state = mark_of(step >> 1);
  if (rows == 0) {
    if (block == BLOCKS - 1 && thread == 0) *(volatile uint32_t*)p.epoch = tag + 1;
    return;
  }

  // The first code.
  const uint32_t tag_logits = ++tag;
  if (block < HEAD_BLOCKS) {
    multiply<Head, NP, NT, true>(stream, state, mark_state, rows, sums, p.zero, waiting);
    finish_product<Head, NP, true, false>(sums, rows, [&](int tile, int i, int n, const float* v) {
      send_pair(p.logits + (uint64_t)n * VOCABULARY + block_() * 32 + tile * 16 + 2 * i, v[0], v[1], tag_logits);
    });
    leave();
  }
  int slot = 0, code = 0;
  if (samples) {
    constexpr int NE = VOCABULARY / THREADS;
    const Row& rule = p.row[row];
    slot = p.column[row].slot;
    float v[NE];
    uint32_t* const seen = reinterpret_cast<uint32_t*>(p.seen + (uint64_t)slot * VOCABULARY + thread * NE);
#pragma unroll
    for (int j = 0; j < NE; j += 2) {
      const float2 pair = receive_pair(p.logits + (uint64_t)row * VOCABULARY + thread * NE + j, tag_logits, waiting);
      v[j] = pair.x; v[j + 1] = pair.y;
    }
#pragma unroll
    for (int j = 0; j < NE; j++) {
      const int id = thread * NE + j;
      if (p.seen_logits) p.seen_logits[(uint64_t)row * VOCABULARY + id] = v[j];
      const bool had = !(rule.flags & FIRST_FRAME) && (seen[j / 4] >> (j % 4 * 8) & 1);
      if (had) v[j] = v[j] < 0 ? v[j] * rule.penalty : v[j] / rule.penalty;
      const bool end = id == p.end_of_speech;
      if (end ? !(rule.flags & MAY_END) : id >= VOCABULARY - SUPPRESSED) v[j] = BANNED;
    }
    code = choose<NE>(v, Choice{rule.inverse_temperature, rule.top_p, uniform(rule.seed, rule.frame, 0), rule.top_k, (rule.flags & GREEDY) != 0}, scratch);
#pragma unroll
    for (int w = 0; w < NE / 4; w++) {
      const int place = code - thread * NE - w * 4;
      uint32_t word = rule.flags & FIRST_FRAME ? 0 : seen[w];
      if (place >= 0 && place < 4) word |= 1u << (place * 8);
      seen[w] = word;
    }
    if (thread == 0) { p.latest[slot * CODEBOOKS] = code; p.out[row * CODEBOOKS] = code; }
  }

  // The code predictor. p_x holds four buffers: between layers by parity, and positions' inputs by parity.
  auto input = [&](int position) { return half(p.p_x, 2 + (position & 1), P_HIDDEN / 2 * PN); };
  auto embed = [&](const bf16* table, int id, int position) {
#pragma unroll
    for (int k = 2 * thread; k < P_HIDDEN; k += 2 * THREADS) {
      const float2 f = unpack(*reinterpret_cast<const uint32_t*>(table + (uint64_t)id * P_HIDDEN + k));
      send_input(input(position) + fragment<NP>(k, row), f.x, f.y, mark_of(position >> 1));
    }
  };
  if (samples) embed(p.p_first_codes, code, 1);
  if (p_owner) {
    multiply<Project, NP, NT, true>(stream, state, mark_state, rows, sums, p.zero, waiting);
    finish_product<Project, NP, true, false>(sums, rows, [&](int, int i, int n, const float* v) {
      const int k = block_() * 16 + 2 * i;
      send_input(input(0) + fragment<NP>(k, n), v[0] + p.p_bias[k], v[1] + p.p_bias[k + 1], mark_of(0));
    });
    leave();
  }
#pragma unroll 1
  for (int position = 0; position < CODEBOOKS; position++) {
#pragma unroll 1
    for (int layer = 0; layer < P_LAYERS; layer++, step++) {
      const int parity = step & 1;
      const uint32_t* x = layer == 0 ? input(position) : half(p.p_x, parity, P_HIDDEN / 2 * PN);
      uint32_t *next_x = half(p.p_x, parity ^ 1, P_HIDDEN / 2 * PN), *xa = half(p.p_xa, parity, P_HIDDEN / 2 * PN),
               *h = half(p.p_h, parity, P_INTERMEDIATE / 2 * PN), *a = half(p.p_a, parity, ATTENDED / 2 * PN);
      uint2* qkv = half(p.p_qkv, parity, QKV / 2 * PN);
      const uint32_t mark = mark_of(step >> 1), next_mark = mark_of((step + 1) >> 1), mark_x = layer == 0 ? mark_of(position >> 1) : mark;
      multiply<PQkv, NP, NP, true>(stream, x, mark_x, rows, sums, p.zero, waiting);
      const uint32_t tag_qkv = ++tag;
      finish_product<PQkv, NP, true, false>(sums, rows, [&](int tile, int i, int n, const float* v) {
        send(qkv + n * (QKV / 2) + block_() * (QKV / BLOCKS / 2) + tile * 8 + i, pack(v[0], v[1]), tag_qkv);
      });
      if (p_owner && layer == 0)
        for (int t = thread_(); t < 8 * PN; t += THREADS) {
          const int n = t % PN, i = t / PN;
          if (n < rows) {
            const float2 v = receive_input(x + fragment<NP>(block_() * 16 + 2 * i, n), mark_x, waiting);
            p_residual[2 * i * PN + n] = v.x; p_residual[(2 * i + 1) * PN + n] = v.y;
          }
        }
      leave();
      const int unit = (thread_() >> 5) * BLOCKS + block_();
      if (unit < rows * HEADS)
        attend_frame<NP>(unit / HEADS, unit % HEADS, position, p.p_memory + ((uint64_t)layer * MOST_COLUMNS * HEADS + unit) * CODEBOOKS * 64, qkv, tag_qkv,
                         p.p_q_norm + layer * HEAD_DIM, p.p_k_norm + layer * HEAD_DIM, p.p_rotations, a, mark, waiting);
      auto add = [&](uint32_t* words, uint32_t mark_words) {
        return [=](int, int i, int n, const float* v) {
          const float low = p_residual[2 * i * PN + n] + v[0], high = p_residual[(2 * i + 1) * PN + n] + v[1];
          p_residual[2 * i * PN + n] = low; p_residual[(2 * i + 1) * PN + n] = high;
          send_input(words + fragment<NP>(block_() * 16 + 2 * i, n), low, high, mark_words);
        };
      };
      if (p_owner) {
        multiply<Out, NP, NP, false>(stream, a, mark, rows, sums, p.zero, waiting);
        finish_product<Out, NP, false, false>(sums, rows, add(xa, mark));
        leave();
      }
      multiply<PGate, NP, NP, true>(stream, xa, mark, rows, sums, p.zero, waiting);
      finish_product<PGate, NP, true, true>(sums, rows, [&](int tile, int i, int n, const float* v) {
        send_input(h + fragment<NP>((block_() * PGate::TILES + tile) * 8 + 2 * i, n), swiglu(v[0], v[2]), swiglu(v[1], v[3]), mark);
      });
      leave();
      if (p_owner) {
        multiply<PDown, NP, NP, false>(stream, h, mark, rows, sums, p.zero, waiting);
        finish_product<PDown, NP, false, false>(sums, rows, add(next_x, next_mark));
        leave();
      }
    }
    if (position == 0) continue;
    const uint32_t tag_p_logits = ++tag;
    uint2* const logits = half(p.p_logits, position & 1, CODES * PN);
    multiply<PHead, NP, NP, true>(stream, half(p.p_x, step & 1, P_HIDDEN / 2 * PN), mark_of(step >> 1), rows, sums, p.zero, waiting);
    finish_product<PHead, NP, true, false>(sums, rows, [&](int, int i, int n, const float* v) {
      send_pair(logits + (uint64_t)n * CODES + block_() * 16 + 2 * i, v[0], v[1], tag_p_logits);
    });
    leave();
    if (samples) {
      constexpr int NE = CODES / THREADS;
      const Row& rule = p.row[row];
      float v[NE];
#pragma unroll
      for (int j = 0; j < NE; j += 2) {
        const float2 pair = receive_pair(logits + (uint64_t)row * CODES + thread_() * NE + j, tag_p_logits, waiting);
        v[j] = pair.x; v[j + 1] = pair.y;
        if (p.p_seen_logits) *reinterpret_cast<float2*>(p.p_seen_logits + ((uint64_t)(position - 1) * rows + row) * CODES + thread_() * NE + j) = pair;
      }
      code = choose<NE>(v, Choice{rule.sub_inverse_temperature, rule.sub_top_p, uniform(rule.seed, rule.frame, position), rule.sub_top_k, (rule.flags & SUB_GREEDY) != 0}, scratch);
      if (position < CODEBOOKS - 1) embed(p.p_other_codes + (uint64_t)(position - 1) * CODES * P_HIDDEN, code, position + 1);
      if (thread_() == 0) { p.latest[slot * CODEBOOKS + position] = code; p.out[row * CODEBOOKS + position] = code; }
      __syncthreads();
    }
  }
  if (block == BLOCKS - 1 && thread == 0) *(volatile uint32_t*)p.epoch = tag + 1;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) frame(const __grid_constant__ Params p) { run<TALKER_TILES, PREDICTOR_TILES>(p); }
extern "C" __device__ int shared_bytes = Shape<TALKER_TILES, PREDICTOR_TILES>::BYTES;
