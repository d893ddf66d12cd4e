// The weights' way into the chip: every warp owns a ring of SLOTS chunks (4 KB, eight 16x16 tiles) in shared memory that
// bulk copies fill in the order of use. Nothing in it depends on activations, so it runs ahead across matrices, layers
// and positions, and memory never idles while blocks wait for each other.
#pragma once
#include "protocol.cuh"

constexpr int CHUNK_BYTES = 4096;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// One matrix of the schedule is a uint4: its address in x and y, the chunks that each warp takes of it in z, and in w
// whether L2 should keep it.
template <int SLOTS> struct Stream {
  uint32_t ring, barriers;  // shared addresses
  int slot;                 // of the consumer
  uint32_t parity;
  int filling, left;        // of the producer
  uint32_t keep;
  const char* source;
  const uint4* legs;
  uint4 next;

  __device__ __forceinline__ void begin(char* rings, char* all_barriers, const uint4* schedule) {
    const int warp = thread_() >> 5;
    ring = shared_address(rings) + warp * SLOTS * CHUNK_BYTES;
    barriers = shared_address(all_barriers) + warp * SLOTS * 8;
    slot = filling = 0; parity = 0; legs = schedule; next = __ldg(legs);
    turn();
    if ((thread_() & 31) == 0)
      for (int i = 0; i < SLOTS; i++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + i * 8) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    for (int i = 0; i < SLOTS; i++) fill(0);
  }
  __device__ __forceinline__ void turn() {
    const char* base = reinterpret_cast<const char*>(((uint64_t)next.y << 32) | next.x);
    left = next.z; keep = next.w;
    source = base + (uint64_t)(block_() * WARPS + (thread_() >> 5)) * left * CHUNK_BYTES;
    next = __ldg(++legs);
  }
  // `after` is 0; it only makes the copy wait for the last read of the slot that it overwrites.
  __device__ __forceinline__ void fill(uint32_t after) {
    if (left == 0) return;
    if ((thread_() & 31) == 0) {
      const uint32_t barrier = barriers + filling * 8, target = ring + filling * CHUNK_BYTES, size = CHUNK_BYTES | after;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(size) : "memory");
      uint64_t policy;
      if (keep) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
      else asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                   ::"r"(target), "l"(source), "r"(size), "r"(barrier), "l"(policy) : "memory");
    }
    if (++filling == SLOTS) filling = 0;
    source += CHUNK_BYTES;
    if (--left == 0) turn();
  }
  // Eight tiles into registers, then the slot is filled again. `zero` is 0, unknown to the compiler.
  __device__ __forceinline__ void take(uint4* tiles, uint32_t zero) {
    const uint32_t barrier = barriers + slot * 8, place = ring + slot * CHUNK_BYTES + (thread_() & 31) * 16;
    asm volatile("{\n.reg .pred full;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 full, [%0], %1;\n"
                 "@full bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(barrier), "r"(parity) : "memory");
#pragma unroll
    for (int i = 0; i < 8; i++)
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(tiles[i].x), "=r"(tiles[i].y), "=r"(tiles[i].z), "=r"(tiles[i].w) : "r"(place + i * 512) : "memory");
    if (++slot == SLOTS) { slot = 0; parity ^= 1; }
    __syncwarp();
    fill(tiles[7].x & zero);
  }
};
