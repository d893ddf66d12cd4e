"""The codec: 16 codes per 80 ms frame in, 24 kHz samples out."""

from engine_lib.codec.engine import Engine
from engine_lib.codec.jobs import CodecJob, PcmChunk

__all__ = ["CodecJob", "Engine", "PcmChunk"]
