// Numbers that travel between blocks while all of them run, and the small vocabulary that every file uses.
//
// A word is {payload, tag}: 8 bytes that arrive together (the same assumption as NCCL's LL protocol). The reader spins
// on the word itself until the tag is the one of the phase that it waits for, so data and synchronisation are one trip
// through the L2 cache and there is no barrier across the chip. Tags only ever grow; the host clears all buffers before
// the 32 bits are used up.
//
// What every block reads, the input of a product, travels in half of that: two bf16 in 4 bytes, with a mark where both
// exponents' top bits would be. They are free because all such values are sent divided by 2^24, which loses nothing. A
// mark is the number of the buffer's use modulo 3. That is enough: the host fills the buffers with ones (the fourth mark)
// before every launch, a thread that loads one address again never sees it as it was earlier than before, and no thread
// leaves out two uses of a word that it reads. So what it may still see there is the use before or the one before that.
#pragma once
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned short bf16;  // as bits

constexpr int BLOCKS = 128, THREADS = 256, WARPS = 8;
constexpr uint32_t ALL_LANES = ~0u;

// Read again in every phase: keeps the compiler from hoisting, and then spilling, the index arithmetic of all phases.
__device__ __forceinline__ int thread_() { int v; asm volatile("mov.u32 %0, %%tid.x;" : "=r"(v)); return v; }
__device__ __forceinline__ int block_() { int v; asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(v)); return v; }

// A stress build holds every waiting reader and every writer up for a while that nobody can foresee.
#ifdef STRESS
__device__ __forceinline__ void dawdle() {
  uint32_t clock;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
  clock = (clock ^ (thread_() * 2654435761u) ^ (block_() * 40503u)) * 2246822519u;
  if ((clock >> 28) == 0) __nanosleep((clock >> 16) & 2047);
}
#else
__device__ __forceinline__ void dawdle() {}
#endif

__device__ __forceinline__ uint4 load4(const void* place) {
  dawdle();
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(place) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load2(const void* place) {
  dawdle();
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(place) : "memory");
  return v;
}
__device__ __forceinline__ void send(uint2* place, uint32_t payload, uint32_t tag) {
  dawdle();
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(place), "r"(payload), "r"(tag) : "memory");
}
__device__ __forceinline__ void send_pair(uint2* place, float a, float b, uint32_t tag) {
  send(place, __float_as_uint(a), tag);
  send(place + 1, __float_as_uint(b), tag);
}

// A wait that lasts this long means that the protocol broke: the block says so to the host and stops waiting at all.
#ifndef PATIENCE
#define PATIENCE (1 << 20)
#endif
struct Waiting { bool broken; int* failed; };
__device__ __forceinline__ bool hopeless(int& tries, Waiting& waiting) {
  if (waiting.broken) return true;
  if (++tries > PATIENCE) { waiting.broken = true; *(volatile int*)waiting.failed = 1; return true; }
  return false;
}
__device__ __forceinline__ uint32_t receive(const uint2* place, uint32_t tag, Waiting& waiting) {
  int tries = 0;
  uint2 v;
  do v = load2(place); while (v.y != tag && !hopeless(tries, waiting));
  return v.x;
}
__device__ __forceinline__ float2 receive_pair(const uint2* place, uint32_t tag, Waiting& waiting) {
  int tries = 0;
  uint4 v;
  do v = load4(place); while ((v.y != tag || v.w != tag) && !hopeless(tries, waiting));
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.z));
}

// Two bf16 in 32 bits, the lower index in the lower half.
__device__ __forceinline__ float2 unpack(uint32_t v) {
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
__device__ __forceinline__ uint32_t pack(float a, float b) {
  uint32_t v;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(b), "f"(a));
  return v;
}

constexpr uint32_t MARKS = 0x40004000u;
constexpr float GROW = 0x1p24f, SHRINK = 0x1p-24f;
constexpr float LARGEST = 1.9921875f;  // bf16 with the top bit of its exponent free: 3.3e7 before it is shrunk

__device__ __forceinline__ uint32_t mark_of(int use) {
  const int m = use % 3;
  return (m & 1) << 14 | (m >> 1) << 30;
}
__device__ __forceinline__ void send_input(uint32_t* place, float a, float b, uint32_t mark) {
  dawdle();
  // Nothing that is sent may look like a mark: infinity and NaN (then the lower bound) don't either.
  const float low = fminf(fmaxf(a * SHRINK, -LARGEST), LARGEST), high = fminf(fmaxf(b * SHRINK, -LARGEST), LARGEST);
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(place), "r"(pack(low, high) | mark) : "memory");
}
__device__ __forceinline__ float2 receive_input(const uint32_t* place, uint32_t mark, Waiting& waiting) {
  int tries = 0;
  uint32_t v;
  do {
    dawdle();
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(place) : "memory");
  } while (((v ^ mark) & MARKS) != 0 && !hopeless(tries, waiting));
  const float2 f = unpack(v ^ mark);
  return make_float2(f.x * GROW, f.y * GROW);
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(ALL_LANES, v, o);
  return v;
}

// Inputs of products lie in the order in which mma.m16n8k16 wants its B operand, those of two k-tiles of a lane together:
// the place of the pair (k, k + 1), k even, of column n, in a buffer of NX column tiles.
template <int NX> __device__ __forceinline__ int fragment(int k, int n) {
  const int pair = k >> 5, part = (k >> 3) & 3, lane = (n & 7) * 4 + ((k & 7) >> 1);
  return ((pair * NX + (n >> 3)) * 32 + lane) * 4 + part;
}
