// The codec's decoder on Hopper GPUs: engine_lib/codec/kernels launches what is here. -DHALF: float16, else bfloat16.
#include "codec_conv.cuh"
#include "codec_stages.cuh"

// The host fills these structures through mirrors of its own.
static_assert(sizeof(Conv) == CONV_BYTES && sizeof(Embed) == EMBED_BYTES && sizeof(Attention) == ATTENTION_BYTES, "mirror");
static_assert(sizeof(Depthwise) == DEPTHWISE_BYTES && sizeof(Last) == LAST_BYTES && sizeof(Carry) == CARRY_BYTES, "mirror");
