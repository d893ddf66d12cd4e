// The tensor cores' instruction for each width of a tile: acc [width / 2] += a (64 x 16) x b (16 x width), operands as
// `operand` describes them. Every accumulator is an operand of the instruction, sixteen of them a line here.
#pragma once
#include "codec_common.cuh"

template <int NT>
__device__ __forceinline__ void wgmma(float* acc, u64 a, u64 b);

#define FOUR(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", " "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_48 NAMES_32 ", " "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 NAMES_48 ", " "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_80 NAMES_64 ", " "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_96 NAMES_80 ", " "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OPERANDS_16 SIXTEEN(0)
#define OPERANDS_32 OPERANDS_16, SIXTEEN(16)
#define OPERANDS_48 OPERANDS_32, SIXTEEN(32)
#define OPERANDS_64 OPERANDS_48, SIXTEEN(48)
#define OPERANDS_80 OPERANDS_64, SIXTEEN(64)
#define OPERANDS_96 OPERANDS_80, SIXTEEN(80)

// A and B are the numbers of the operands behind the accumulators.
#define WGMMA(WIDTH, ACCUMULATORS, A, B)                                                                          \
    template <>                                                                                                   \
    __device__ __forceinline__ void wgmma<WIDTH>(float* acc, u64 a, u64 b) {                                      \
        asm volatile("{.reg .pred p; setp.eq.u64 p, %" #A ", %" #A "; wgmma.mma_async.sync.aligned.m64n" #WIDTH   \
                     "k16.f32." NUMBER "." NUMBER " {" NAMES_##ACCUMULATORS "}, %" #A ", %" #B ", p, 1, 1, 0, 0;}" \
                     : OPERANDS_##ACCUMULATORS                                                                    \
                     : "l"(a), "l"(b));                                                                           \
    }
WGMMA(32, 16, 16, 17)
WGMMA(64, 32, 32, 33)
WGMMA(96, 48, 48, 49)
WGMMA(128, 64, 64, 65)
WGMMA(192, 96, 96, 97)
#undef WGMMA
