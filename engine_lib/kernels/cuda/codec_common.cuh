// What every kernel of the codec shares: 16-bit numbers, layouts, and the instructions of Hopper that they use.
//
// An activation is [channels / 8][rows * columns][8]: the 8 channels of a column are 16 bytes, and the columns of one
// block of channels follow each other. That is how wgmma reads an operand without swizzle (8 columns x 16 bytes are its
// core matrix), so a tile is a few contiguous runs, a shift in time is a shift of the address, and the 32 lanes of a
// warp write 128 contiguous bytes of a result. State is [slots][2][channels / 8][columns][8]: two halves, one of which
// is read while the other is written.

#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// One row of a call, uploaded by the host.
struct Row {
    int slot;
    int start;   // frames that the stream had before
    int length;  // frames of this call; 0: the row is idle
    int half;    // which half of the slot's state is read; the other one is written
};

#ifdef HALF
#define NUMBER "f16"
// Two floats as float16. The largest number stands for what lies beyond it: an infinity would spread.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("{.reg .b32 t; cvt.rn.f16x2.f32 t, %1, %2; min.f16x2 t, t, %3; max.f16x2 %0, t, %4;}"
        : "=r"(both)
        : "f"(high), "f"(low), "r"(0x7bff7bff), "r"(0xfbfffbff));
    return both;
}
__device__ __forceinline__ float low_of(u32 both) {
    float value;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(value) : "r"(both));
    return value;
}
__device__ __forceinline__ float high_of(u32 both) {
    float value;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(value) : "r"(both));
    return value;
}
#else
#define NUMBER "bf16"
// Two floats as bfloat16.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ float low_of(u32 both) { return __uint_as_float(both << 16); }
__device__ __forceinline__ float high_of(u32 both) { return __uint_as_float(both & 0xffff0000u); }
#endif

__device__ __forceinline__ void unpack(uint4 eight, float* values) {
    values[0] = low_of(eight.x), values[1] = high_of(eight.x);
    values[2] = low_of(eight.y), values[3] = high_of(eight.y);
    values[4] = low_of(eight.z), values[5] = high_of(eight.z);
    values[6] = low_of(eight.w), values[7] = high_of(eight.w);
}

__device__ __forceinline__ float snake(float x, float rate, float gain) {
    float wave = __sinf(x * rate);
    return fmaf(wave * wave, gain, x);
}

__device__ __forceinline__ u32 shared_address(const void* place) { return (u32)__cvta_generic_to_shared(place); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile(
            "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}
__device__ __forceinline__ void copy_in(u32 place, const void* source, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(place),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
}

// A wgmma operand without swizzle: `across` bytes between its two halves of 8 along K, `down` between groups of 8 rows.
__device__ __forceinline__ u64 operand(u32 address, u32 across, u32 down) {
    return (u64)(address >> 4) | (u64)(across >> 4) << 16 | (u64)(down >> 4) << 32;
}

// True for one lane of the warp. The compiler knows what this is and starts copies from there without a loop over lanes.
__device__ __forceinline__ bool elect() {
    u32 chosen;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(chosen));
    return chosen;
}

// A kernel may be started while the one before it still runs, so that it can fetch its weights: it must come by here
// before it touches anything that a kernel writes, and before it ends. From here on the next one may be started.
__device__ __forceinline__ void await_inputs() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
