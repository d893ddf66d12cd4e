// What isn't a matrix product: codes in, attention, the depthwise convolution, samples out, and the rest of the state.

#pragma once
#include "codec_common.cuh"

struct Embed {
    const float* table;  // [quantizers][entries][channels], projected
    const int* codes;    // [rows][frames][quantizers]
    u16* output;
    u16* output_state;
    const Row* row;
    int rows, frames, quantizers, entries, channels, tail;
};

// The sum of a frame's entries. Grid: rows * frames; threads: channels / 4.
extern "C" __global__ void embed(const __grid_constant__ Embed embed) {
    await_inputs();
    const int at_row = blockIdx.x / embed.frames, frame = blockIdx.x % embed.frames, channel = threadIdx.x * 4;
    const Row at = embed.row[at_row];
    if (frame >= at.length) return;
    float4 sum = {};
    for (int quantizer = 0; quantizer < embed.quantizers; ++quantizer) {
        const int code = embed.codes[blockIdx.x * embed.quantizers + quantizer];
        const float4 entry =
            *(const float4*)(embed.table + ((long long)quantizer * embed.entries + code) * embed.channels + channel);
        sum.x += entry.x, sum.y += entry.y, sum.z += entry.z, sum.w += entry.w;
    }
    const uint2 four = make_uint2(pack(sum.x, sum.y), pack(sum.z, sum.w));
    const int plane = channel / 8, inside = channel % 8;
    *(uint2*)(embed.output + ((long long)plane * embed.rows * embed.frames + blockIdx.x) * 8 + inside) = four;
    const int kept = frame - at.length + embed.tail;
    if (kept >= 0) {
        const long long half = (at.slot * 2 + (at.half ^ 1)) * (long long)(embed.channels / 8) + plane;
        *(uint2*)(embed.output_state + (half * embed.tail + kept) * 8 + inside) = four;
    }
}

struct Attention {
    const u16* input;  // queries, keys, values [3 * heads * 64 / 8][rows * frames][8]
    u16* output;       // [heads * 64 / 8][rows * frames][8]
    u16* ring;         // [slots][layers][2][heads][RING][64]: keys (rotated) and values of a stream's last frames
    const float* speed;  // [32]: radians a frame
    const Row* row;
    int rows, frames, heads, layer, layers, window;
};

const int RING = 128;  // frames; at least window - 1 + frames
const int SEEN = 96;   // columns of keys in shared memory: at least window - 1 + frames
const int FRAMES = 25;

// Attention of one row's new frames to the last `window` ones. Grid: heads, rows; 128 threads; head size 64.
extern "C" __global__ void __launch_bounds__(128) attend(const __grid_constant__ Attention attention) {
    await_inputs();
    __shared__ u32 keys[SEEN][33], values[SEEN][33];
    __shared__ float queries[FRAMES][64], weights[4][SEEN];
    const int head = blockIdx.x, at_row = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int frames = attention.frames, before = attention.window - 1;
    const long long columns = (long long)attention.rows * frames;
    const Row at = attention.row[at_row];
    if (at.length == 0) return;
    const int planes = attention.heads * 8;
    u32* ring_keys = (u32*)attention.ring +
                     (((long long)at.slot * attention.layers + attention.layer) * 2 * attention.heads + head) * RING * 32;
    u32* ring_values = ring_keys + (long long)attention.heads * RING * 32;
    for (int i = threadIdx.x; i < before * 32; i += 128) {
        const int column = i >> 5, position = at.start - before + column;
        const int place = (position & (RING - 1)) * 32 + lane;
        keys[column][lane] = position < 0 ? 0 : ring_keys[place];
        values[column][lane] = position < 0 ? 0 : ring_values[place];
    }
    for (int frame = warp; frame < at.length; frame += 4) {
        const long long column = (long long)at_row * frames + frame;
        const int position = at.start + frame, place = (position & (RING - 1)) * 32 + lane;
        // Lane d turns the pair (d, d + 32).
        const u16* from = attention.input + ((long long)(head * 8 + lane / 8) * columns + column) * 8 + lane % 8;
        float sine, cosine;
        sincosf(position * attention.speed[lane], &sine, &cosine);
        const float q0 = low_of(from[0]), q1 = low_of(from[4 * columns * 8]);
        queries[frame][lane] = q0 * cosine - q1 * sine;
        queries[frame][lane + 32] = q1 * cosine + q0 * sine;
        from += planes * columns * 8;
        const float k0 = low_of(from[0]), k1 = low_of(from[4 * columns * 8]);
        const float r0 = k0 * cosine - k1 * sine, r1 = k1 * cosine + k0 * sine;
        // Words of two neighbours: lane d < 16 makes word d of both halves, lanes beyond give theirs away.
        const float r0a = __shfl_sync(~0u, r0, lane * 2 & 31), r0b = __shfl_sync(~0u, r0, lane * 2 + 1 & 31);
        const float r1a = __shfl_sync(~0u, r1, lane * 2 & 31), r1b = __shfl_sync(~0u, r1, lane * 2 + 1 & 31);
        const u32 word = lane < 16 ? pack(r0a, r0b) : pack(r1a, r1b);
        keys[before + frame][lane] = word;
        ring_keys[place] = word;
        const u32* value = (const u32*)(attention.input +
                                        ((long long)(2 * planes + head * 8 + lane / 4) * columns + column) * 8) + lane % 4;
        values[before + frame][lane] = *value;
        ring_values[place] = *value;
    }
    __syncthreads();
    for (int frame = warp; frame < at.length; frame += 4) {
        float scores[3], most = -1e30f;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const int key = lane + 32 * i;  // 0 is the oldest
            scores[i] = -1e30f;
            if (key < attention.window && at.start + frame - before + key >= 0) {
                float sum = 0.f;
                for (int d = 0; d < 32; ++d) {
                    const u32 both = keys[frame + key][d];
                    sum = fmaf(queries[frame][2 * d], low_of(both), sum);
                    sum = fmaf(queries[frame][2 * d + 1], high_of(both), sum);
                }
                scores[i] = sum * 0.125f;
            }
            most = fmaxf(most, scores[i]);
        }
        for (int apart = 16; apart; apart >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
        float total = 0.f;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const float weight = scores[i] > -1e29f ? __expf(scores[i] - most) : 0.f;
            weights[warp][lane + 32 * i] = weight;
            total += weight;
        }
        for (int apart = 16; apart; apart >>= 1) total += __shfl_xor_sync(~0u, total, apart);
        __syncwarp();
        float low = 0.f, high = 0.f;
        for (int key = 0; key < attention.window; ++key) {
            const u32 both = values[frame + key][lane];
            low = fmaf(weights[warp][key], low_of(both), low);
            high = fmaf(weights[warp][key], high_of(both), high);
        }
        __syncwarp();
        const long long column = (long long)at_row * frames + frame;
        *(u32*)(attention.output + ((long long)(head * 8 + lane / 4) * columns + column) * 8 + lane % 4 * 2) =
            pack(low / total, high / total);
    }
}

struct Depthwise {
    const u16* input;
    const u16* input_state;
    const float* weights;  // [7][channels]
    const float* bias;
    u16* output;
    const Row* row;
    int rows, columns, per_frame;
    float eps;
};

__device__ __forceinline__ float block_sum(float value, float* sums) {
    for (int apart = 16; apart; apart >>= 1) value += __shfl_xor_sync(~0u, value, apart);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = value;
    __syncthreads();
    float total = 0.f;
    for (int warp = 0; warp < blockDim.x >> 5; ++warp) total += sums[warp];
    __syncthreads();
    return total;
}

// A causal convolution of each channel with 7 taps, then the column's values less their mean, over their deviation.
// Grid: rows * columns; threads: channels / 8.
extern "C" __global__ void depthwise(const __grid_constant__ Depthwise layer) {
    await_inputs();
    __shared__ float sums[32];
    const int at_row = blockIdx.x / layer.columns, time = blockIdx.x % layer.columns, plane = threadIdx.x;
    const Row at = layer.row[at_row];
    if (time >= at.length * layer.per_frame) return;
    const int planes = blockDim.x, channels = planes * 8;
    const long long all_columns = (long long)layer.rows * layer.columns;
    float y[8];
    for (int i = 0; i < 8; ++i) y[i] = layer.bias[plane * 8 + i];
    for (int tap = 0; tap < 7; ++tap) {
        const int from = time - 6 + tap;
        const u16* source = from >= 0 ? layer.input + (plane * all_columns + blockIdx.x - 6 + tap) * 8
                                      : layer.input_state + (((at.slot * 2 + at.half) * (long long)planes + plane) * 6 + 6 + from) * 8;
        float x[8] = {};
        if (from >= 0 || at.start) unpack(*(const uint4*)source, x);
        const float* weight = layer.weights + tap * channels + plane * 8;
        for (int i = 0; i < 8; ++i) y[i] = fmaf(x[i], weight[i], y[i]);
    }
    float sum = 0.f;
    for (int i = 0; i < 8; ++i) sum += y[i];
    const float mean = block_sum(sum, sums) / channels;
    float squares = 0.f;
    for (int i = 0; i < 8; ++i) y[i] -= mean, squares = fmaf(y[i], y[i], squares);
    const float scale = rsqrtf(block_sum(squares, sums) / channels + layer.eps);
    uint4 eight;
    eight.x = pack(y[0] * scale, y[1] * scale), eight.y = pack(y[2] * scale, y[3] * scale);
    eight.z = pack(y[4] * scale, y[5] * scale), eight.w = pack(y[6] * scale, y[7] * scale);
    *(uint4*)(layer.output + (plane * all_columns + blockIdx.x) * 8) = eight;
}

struct Last {
    const u16* input;
    const u16* input_state;
    const float* weights;  // [channels / 8][7][8]
    const float* bias;     // [1]
    short* pcm;            // [rows][columns]
    float* wave;           // the same, in -1..1
    const Row* row;
    int rows, columns, per_frame, planes;
};

const int LAST_PLANES = 12;
const int LAST_COLUMNS = 256;  // of a block of threads
const int LAST_MINE = 4;       // of a thread, one behind the other

// Where a column's 16 bytes are in shared memory: threads LAST_MINE columns apart find theirs in different banks.
__device__ __forceinline__ int last_place(int column) { return column ^ (column >> 3 & 7); }

// The convolution to one channel: samples. Grid: tiles of LAST_COLUMNS columns, rows; LAST_COLUMNS / LAST_MINE threads.
extern "C" __global__ void __launch_bounds__(64) sound(const __grid_constant__ Last last) {
    extern __shared__ __align__(1024) unsigned char shared[];
    await_inputs();
    float* weights = (float*)shared;                                        // [LAST_PLANES][7][8]
    uint4* tile = (uint4*)(shared + LAST_PLANES * 56 * 4);                  // [LAST_PLANES][WIDTH]
    constexpr int THREADS = LAST_COLUMNS / LAST_MINE, WIDTH = LAST_COLUMNS + 8;  // the first two columns are unused
    const Row at = last.row[blockIdx.y];
    const int first = blockIdx.x * LAST_COLUMNS, columns = at.length * last.per_frame;
    if (first >= columns) return;
    for (int i = threadIdx.x; i < last.planes * 56; i += THREADS) weights[i] = last.weights[i];
    const long long all_columns = (long long)last.rows * last.columns;
    const uint4* input = (const uint4*)last.input + (long long)blockIdx.y * last.columns + first;
    const uint4* state = (const uint4*)last.input_state + (at.slot * 2 + at.half) * (long long)last.planes * 6;
    for (int plane = 0; plane < last.planes; ++plane) {
#pragma unroll
        for (int i = 0; i < LAST_MINE; ++i) {
            const int column = threadIdx.x + THREADS * i;
            if (first + column < columns) tile[plane * WIDTH + last_place(column + 8)] = input[plane * all_columns + column];
        }
        if (threadIdx.x < 6)
            tile[plane * WIDTH + last_place(threadIdx.x + 2)] =
                first ? input[plane * all_columns + threadIdx.x - 6]
                      : at.start ? state[plane * 6 + threadIdx.x] : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    const int mine = threadIdx.x * LAST_MINE;
    if (first + mine >= columns) return;
    float sum[LAST_MINE];
#pragma unroll
    for (int i = 0; i < LAST_MINE; ++i) sum[i] = last.bias[0];
    for (int plane = 0; plane < last.planes; ++plane) {
#pragma unroll
        for (int step = 0; step < LAST_MINE + 6; ++step) {
            float x[8];
            unpack(tile[plane * WIDTH + last_place(mine + step + 2)], x);
#pragma unroll
            for (int i = 0; i < LAST_MINE; ++i) {
                const int tap = step - i;
                if (tap < 0 || tap > 6) continue;
                const float* weight = weights + (plane * 7 + tap) * 8;
#pragma unroll
                for (int c = 0; c < 8; ++c) sum[i] = fmaf(x[c], weight[c], sum[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < LAST_MINE; ++i) {
        if (first + mine + i >= columns) continue;
        const float value = fminf(fmaxf(sum[i], -1.f), 1.f);
        const long long place = (long long)blockIdx.y * last.columns + first + mine + i;
        if (last.pcm) last.pcm[place] = (short)rintf(value * 32767.f);
        if (last.wave) last.wave[place] = value;
    }
}

struct Carry {
    u16* state[16];
    int planes[16], tail[16], per_frame[16];  // per_frame: columns
    const Row* row;
};

// Of layers that got fewer columns than they keep: what is still young enough moves to the other half.
// Grid: layers, rows.
extern "C" __global__ void carry(const __grid_constant__ Carry carry) {
    await_inputs();
    const Row at = carry.row[blockIdx.y];
    const int tail = carry.tail[blockIdx.x], fresh = at.length * carry.per_frame[blockIdx.x], stay = tail - fresh;
    if (at.length == 0 || stay <= 0) return;
    const int planes = carry.planes[blockIdx.x];
    uint4* state = (uint4*)carry.state[blockIdx.x] + (long long)at.slot * 2 * planes * tail;
    const uint4* old = state + at.half * planes * tail;
    uint4* kept = state + (at.half ^ 1) * planes * tail;
    for (int i = threadIdx.x; i < planes * stay; i += blockDim.x) {
        const int plane = i / stay, column = i % stay;
        kept[plane * tail + column] = at.start ? old[plane * tail + column + fresh] : make_uint4(0, 0, 0, 0);
    }
}
