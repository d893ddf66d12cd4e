// A causal convolution, a transposed one or a matrix as one implicit matrix product on the tensor cores.
//
// Columns are M, outputs N, and K runs over blocks of BK inputs, within a block over the taps, within a tap over the
// block's inputs. Every output is summed in this order whatever the tile, the batch or the chunk, so results are
// bitwise the same. A tile is 64 columns for each group of four warps; the last warp brings the operands. With more than
// one tap a tile lies within one row, and its input comes with the columns before it, out of the stream's state where
// the call begins. A transposed convolution of kernel 2r and stride r has 2 taps and r times the outputs.

#pragma once
#include "codec_common.cuh"
#include "codec_wgmma.cuh"

struct Conv {
    const u16* input;
    const u16* input_state;
    const u16* zeros;    // what is before a stream's first column
    const u16* weights;  // [N / width][K / BK][width / 8][BK / 8][8][8]
    const float* bias;   // [N]
    // A second product with all outputs of the first one, which get a bias and a SnakeBeta before; see `Fused`.
    const u16* then_weights;
    const float* then_bias;
    const float* then_rate;
    const float* then_gain;
    const u16* residual;  // added; may be `raw`
    float* wide;          // [N / 8][columns][8]: added and written
    u16* raw;             // written before the activation
    u16* output;          // written after it
    u16* output_state;    // the other half gets the last `tail` columns of `output`
    const float* rate;
    const float* gain;
    const Row* row;
    int rows, columns;  // of the call; columns: of one row, at the input's rate
    int per_frame;      // input columns of a frame
    int chunks;         // blocks of BK inputs
    int taps, dilation;
    int up, outputs;  // N = up * outputs
    int width;        // outputs whose weights lie together
    int tail;
    int blocks, stages;  // places for input blocks and weight stages in shared memory
    int flags;
    float eps;
};

enum { NORM = 1, GELU = 2, SWIGLU = 4, SNAKE = 8, FRESH = 16 };  // FRESH: `wide` is only written

const int MAX_PLACES = 24;
// Shared memory before the operands: barriers, 64 sums of each group, and what is applied to each output, so that the
// results' stores don't hold up its loads.
const int SUMS = 32 * MAX_PLACES;
const int CONSTANTS = 2048;
const int HEADER = CONSTANTS + 6 * 192 * 4;

extern __shared__ __align__(1024) unsigned char shared[];

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int OPEN>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory");
}

// Keeps the compiler from moving what it does with accumulators into the time when the tensor cores hold them.
template <int NT>
__device__ __forceinline__ void settle(float* acc) {
#pragma unroll
    for (int i = 0; i < NT / 2; ++i) asm volatile("" : "+f"(acc[i])::"memory");
}

// acc += 64 columns x NT outputs over BK inputs.
template <int NT, int BK>
__device__ __forceinline__ void multiply(float* acc, u32 columns, u32 across, u32 weights) {
    const u64 a = operand(columns, across, 128), b = operand(weights, 128, BK * 16);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 16; ++k) wgmma<NT>(acc, a + k * (across >> 3), b + k * 16);
    wgmma_commit();
}

template <int NT, int BK, bool FUSED>
__device__ __forceinline__ void convolve(const Conv& conv) {
    constexpr int PLANES = BK / 8;
    constexpr u32 STAGE = NT * BK * 2;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int groups = (blockDim.x - 32) >> 7, tile = groups * 64;
    const bool flat = conv.taps == 1;  // columns know no neighbours: all rows are one
    const int n0 = blockIdx.x * NT;
    int row = 0, first = blockIdx.y * tile, columns = conv.rows * conv.columns;
    if (!flat) {
        const int tiles = (conv.columns + tile - 1) / tile;
        row = blockIdx.y / tiles;
        first = blockIdx.y % tiles * tile;
        columns = conv.row[row].length * conv.per_frame;
        if (first >= columns) return await_inputs();
    }
    const int base = row * conv.columns;
    const int reach = (conv.taps - 1) * conv.dilation, height = tile + reach;
    const int all_columns = conv.rows * conv.columns;
    const u32 block_bytes = PLANES * height * 16;

    const u32 barriers = shared_address(shared);
    const u32 block_full = barriers, block_empty = barriers + 8 * MAX_PLACES;
    const u32 stage_full = barriers + 16 * MAX_PLACES, stage_empty = barriers + 24 * MAX_PLACES;
    const u32 input = barriers + HEADER;
    const u32 weights = input + conv.blocks * block_bytes;
    const u32 between = weights + conv.stages * STAGE;  // FUSED: [NT / 8][tile][8]
    if (threadIdx.x == 0) {
        for (int place = 0; place < conv.blocks; ++place) {
            barrier_init(block_full + 8 * place, 1);
            barrier_init(block_empty + 8 * place, 4 * groups);
        }
        for (int place = 0; place < conv.stages; ++place) {
            barrier_init(stage_full + 8 * place, 1);
            barrier_init(stage_empty + 8 * place, 4 * groups);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();

    if (warp == 4 * groups) {
        if (!elect()) return;  // await_inputs is for all warps together; one lane stands for this one
        const int fresh = min(tile, columns - first);
        const int all_steps = conv.chunks * conv.taps;
        const u16* columns_in = conv.input + (long long)(base + first) * 8;
        const u16* before = columns_in - reach * 8;
        long long before_stride = (long long)all_columns * 8;
        if (!flat && first == 0) {
            const Row at = conv.row[row];
            const long long half = (at.slot * 2 + at.half) * (long long)(conv.chunks * PLANES);
            before = at.start ? conv.input_state + half * reach * 8 : conv.zeros;
            before_stride = at.start ? reach * 8 : 0;
        }
        const u16* weights_in = conv.weights + ((long long)(n0 / conv.width) * all_steps * conv.width + n0 % conv.width) * BK;
        int step = 0, stage = 0, lap = 0;
        auto bring = [&](const u16* source) {
            barrier_wait(stage_empty + 8 * stage, lap & 1 ^ 1);
            barrier_expect(stage_full + 8 * stage, STAGE);
            copy_in(weights + stage * STAGE, source, STAGE, stage_full + 8 * stage);
            if (++stage == conv.stages) stage = 0, ++lap;
        };
        const int ahead = min(conv.stages, all_steps);
        for (; step < ahead; ++step) bring(weights_in + (long long)step * conv.width * BK);
        await_inputs();
        for (int chunk = 0, place = 0, turn = 0; chunk < conv.chunks; ++chunk) {
            const u32 full = block_full + 8 * place;
            barrier_wait(block_empty + 8 * place, turn & 1 ^ 1);
            barrier_expect(full, PLANES * (fresh + reach) * 16);
            const u32 target = input + place * block_bytes;
            if (flat || first > 0) {
#pragma unroll
                for (int plane = 0; plane < PLANES; ++plane)
                    copy_in(target + plane * height * 16, before + (chunk * PLANES + plane) * before_stride,
                            (fresh + reach) * 16, full);
            } else {
#pragma unroll
                for (int plane = 0; plane < PLANES; ++plane) {
                    const int from = chunk * PLANES + plane;
                    copy_in(target + plane * height * 16, before + from * before_stride, reach * 16, full);
                    copy_in(target + (plane * height + reach) * 16, columns_in + (long long)from * all_columns * 8,
                            fresh * 16, full);
                }
            }
            if (++place == conv.blocks) place = 0, ++turn;
            for (; step < (chunk + 1) * conv.taps; ++step)
                bring(weights_in + (long long)step * conv.width * BK);
        }
        if (FUSED)
            for (int chunk = 0; chunk < NT / BK; ++chunk) bring(conv.then_weights + chunk * NT * BK);
        return;
    }

    const int phase = n0 / conv.outputs, channel = n0 % conv.outputs;
    float* constants = (float*)(shared + CONSTANTS);  // [6][NT]; every group writes the same
    for (int i = threadIdx.x & 127; i < NT; i += 128) {
        constants[i] = conv.bias[n0 + i];
        if (conv.flags & SNAKE) {
            constants[NT + i] = conv.rate[channel + i];
            constants[2 * NT + i] = conv.gain[channel + i];
        }
        if (FUSED) {
            constants[3 * NT + i] = conv.then_bias[i];
            constants[4 * NT + i] = conv.then_rate[i];
            constants[5 * NT + i] = conv.then_gain[i];
        }
    }
    await_inputs();
    const int group = warp >> 2, line = (warp & 3) * 16 + (lane >> 2), pair = (lane & 3) * 2;
    float acc[NT / 2];
#pragma unroll
    for (int i = 0; i < NT / 2; ++i) acc[i] = 0.f;
    settle<NT>(acc);
    float squares = 0.f;
    int stage = 0, lap = 0, last_stage = -1, last_place = -1;
    for (int chunk = 0, place = 0, turn = 0; chunk < conv.chunks; ++chunk) {
        const u32 block = input + place * block_bytes + group * 1024;
        barrier_wait(block_full + 8 * place, turn & 1);
        for (int tap = 0; tap < conv.taps; ++tap) {
            barrier_wait(stage_full + 8 * stage, lap & 1);
            multiply<NT, BK>(acc, block + tap * conv.dilation * 16, height * 16, weights + stage * STAGE);
            if (conv.flags & NORM) {
                const int mine = threadIdx.x & 127;
                const uint4* eights = (const uint4*)(shared + (block - barriers)) + (mine & 63);
                for (int plane = mine >> 6; plane < PLANES; plane += 2) {
                    float x[8];
                    unpack(eights[plane * height], x);
#pragma unroll
                    for (int i = 0; i < 8; ++i) squares = fmaf(x[i], x[i], squares);
                }
            }
            wgmma_wait<1>();
            if (lane == 0) {  // what the product before this one read is free
                if (last_stage >= 0) barrier_arrive(stage_empty + 8 * last_stage);
                if (last_place >= 0) barrier_arrive(block_empty + 8 * last_place);
            }
            last_stage = stage;
            last_place = tap == conv.taps - 1 ? place : -1;
            if (++stage == conv.stages) stage = 0, ++lap;
        }
        if (++place == conv.blocks) place = 0, ++turn;
    }
    wgmma_wait<0>();
    settle<NT>(acc);
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");

    if (FUSED) {
        if (lane == 0) barrier_arrive(stage_empty + 8 * last_stage);
        unsigned char* target = shared + (between - barriers) + (group * 64 + line) * 16 + pair * 2;
#pragma unroll
        for (int j = 0; j < NT / 8; ++j) {
            const float2 bias = *(const float2*)(constants + 3 * NT + 8 * j + pair);
            const float2 rate = *(const float2*)(constants + 4 * NT + 8 * j + pair);
            const float2 gain = *(const float2*)(constants + 5 * NT + 8 * j + pair);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float* v = acc + 4 * j + 2 * h;
                *(u32*)(target + (j * tile + 8 * h) * 16) =
                    pack(snake(v[0] + bias.x, rate.x, gain.x), snake(v[1] + bias.y, rate.y, gain.y));
                v[0] = v[1] = 0.f;
            }
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
        settle<NT>(acc);
        for (int chunk = 0; chunk < NT / BK; ++chunk) {
            barrier_wait(stage_full + 8 * stage, lap & 1);
            multiply<NT, BK>(acc, between + (chunk * PLANES * tile + group * 64) * 16, tile * 16, weights + stage * STAGE);
            wgmma_wait<0>();
            if (lane == 0) barrier_arrive(stage_empty + 8 * stage);
            if (++stage == conv.stages) stage = 0, ++lap;
        }
        settle<NT>(acc);
    }

    float scale[2] = {1.f, 1.f};
    if (conv.flags & NORM) {
        float* sums = (float*)(shared + SUMS) + 64 * group;
        const int mine = threadIdx.x & 127;  // the thread 64 further on holds the other planes' sum of the same column
        if (mine >= 64) sums[mine - 64] = squares;
        asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
        if (mine < 64) sums[mine] += squares;
        asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
        const float count = conv.chunks * BK;
        scale[0] = rsqrtf(sums[line] / count + conv.eps);
        scale[1] = rsqrtf(sums[line + 8] / count + conv.eps);
    }

    const u32 out_columns = (u32)all_columns * conv.up;
    bool valid[2];
    u32 place[2];
    int tail_place[2];  // below 0: not among the last columns
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int m = first + group * 64 + line + 8 * h;
        valid[h] = m < columns;
        place[h] = (channel / 8 * out_columns + (u32)(base + m) * conv.up + phase) * 8 + pair;
        tail_place[h] = -1;
        if (conv.output_state && valid[h]) {
            const int at_row = flat ? m / conv.columns : row;
            const Row at = conv.row[at_row];
            const int time = (flat ? m - at_row * conv.columns : m) * conv.up + phase;
            const int kept = time - at.length * conv.per_frame * conv.up + conv.tail;
            if (kept >= 0 && kept < conv.tail)
                tail_place[h] = (((at.slot * 2 + (at.half ^ 1)) * (conv.outputs / 8) + channel / 8) * conv.tail + kept) * 8 + pair;
        }
    }
    // What is added is fetched a batch of outputs ahead.
    constexpr int BATCH = 4, BATCHES = NT / 8 / BATCH;
    u32 added[2][BATCH][2] = {};
    auto fetch = [&](int batch, u32 (*values)[2]) {
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (valid[h]) values[i][h] = *(const u32*)(conv.residual + place[h] + (batch * BATCH + i) * out_columns * 8);
    };
    if (conv.residual) fetch(0, added[0]);
#pragma unroll
    for (int batch = 0; batch < BATCHES; ++batch) {
        if (conv.residual && batch + 1 < BATCHES) fetch(batch + 1, added[(batch + 1) & 1]);
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int j = batch * BATCH + i;
            const float2 bias = *(const float2*)(constants + 8 * j + pair);
            const float2 rate = *(const float2*)(constants + NT + 8 * j + pair);
            const float2 gain = *(const float2*)(constants + 2 * NT + 8 * j + pair);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (!valid[h]) continue;
                float v0 = fmaf(acc[4 * j + 2 * h], scale[h], bias.x), v1 = fmaf(acc[4 * j + 2 * h + 1], scale[h], bias.y);
                if (conv.flags & SWIGLU) {  // gate and up are neighbours; only here is a result half as wide
                    const u32 n = (n0 + 8 * j + pair) / 2;
                    const float gated = v0 / (1.f + __expf(-v0)) * v1;
                    conv.output[(n / 8 * out_columns + base + first + group * 64 + line + 8 * h) * 8 + n % 8] =
                        (u16)pack(gated, 0.f);
                    continue;
                }
                if (conv.flags & GELU) {
                    v0 = 0.5f * v0 * (1.f + erff(v0 * 0.70710678f));
                    v1 = 0.5f * v1 * (1.f + erff(v1 * 0.70710678f));
                }
                const u32 at = place[h] + j * out_columns * 8;
                if (conv.residual) v0 += low_of(added[batch & 1][i][h]), v1 += high_of(added[batch & 1][i][h]);
                if (conv.wide) {
                    const float2 sum = conv.flags & FRESH ? float2() : *(const float2*)(conv.wide + at);
                    v0 += sum.x, v1 += sum.y;
                    *(float2*)(conv.wide + at) = make_float2(v0, v1);
                }
                if (conv.raw) *(u32*)(conv.raw + at) = pack(v0, v1);
                if (conv.flags & SNAKE) v0 = snake(v0, rate.x, gain.x), v1 = snake(v1, rate.y, gain.y);
                const u32 both = pack(v0, v1);
                if (conv.output) *(u32*)(conv.output + at) = both;
                if (tail_place[h] >= 0) *(u32*)(conv.output_state + tail_place[h] + j * conv.tail * 8) = both;
            }
        }
    }
}

#define CONV(NAME, NT, BK, FUSED, THREADS)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ Conv conv) { \
        convolve<NT, BK, FUSED>(conv);                                                               \
    }
CONV(conv_32_64, 32, 64, false, 288)
CONV(conv_64_64, 64, 64, false, 544)
CONV(conv_96_64, 96, 64, false, 544)
CONV(conv_128_64, 128, 64, false, 416)
CONV(conv_192_64, 192, 64, false, 160)
CONV(conv_32_96, 32, 96, false, 288)
CONV(conv_96_96, 96, 96, false, 544)
CONV(unit_96_96, 96, 96, true, 544)
