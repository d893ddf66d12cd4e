"""The frame that opens a streamed MP3: silent, it tells players how much of the beginning isn't sound.

FFmpeg writes one only where it can come back at the end to fill in the length. Here the length stays open.
"""

from __future__ import annotations

import struct

ENCODER_DELAY = 576  # samples by which LAME's encoder is late; players add the decoder's 529 themselves
OPEN_END = 0xFFFFFFFF  # as the number of bytes: a tag without any number isn't taken for one
HAS_BYTES = 2  # flag of the tag: that number is there

# Of MPEG 1, and of 2 and 2.5, which 24 kHz and less are (ISO 11172-3 2.4.2.3, ISO 13818-3 2.4.2.3; layer III).
_KBIT = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_HERTZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}  # by version


def info_frame(first: bytes) -> bytes:
    """A frame with Xing's `Info` tag and LAME's delay for the mono stream that begins with the frame `first`.

    Layout: gabriel.mp3-tech.org/mp3infotag.html, as LAME and FFmpeg write and read it.
    """
    header = int.from_bytes(first[:4], "big")
    version = header >> 19 & 3
    is_mpeg1 = version == 3
    kbit = _KBIT[0 if is_mpeg1 else 1][header >> 12 & 15]
    size = (144 if is_mpeg1 else 72) * kbit * 1000 // _HERTZ[version][header >> 10 & 3]
    side_information = bytes(17 if is_mpeg1 else 9)
    tag = struct.pack(">4sII9s12x", b"Info", HAS_BYTES, OPEN_END, b"Lavf") + (ENCODER_DELAY << 12).to_bytes(3, "big")
    return (first[:4] + side_information + tag).ljust(size, b"\0")
