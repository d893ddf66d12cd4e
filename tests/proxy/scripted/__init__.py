import zlib

HERTZ = 500  # the tone of codec.py
LOUDNESS, STEP = 4000, 20  # of frame 0, and from one frame to the next


def number_of(word: str) -> int:
    """The number of the frame that speaks a word of live text; words that differ sound different, as a rule."""
    return zlib.crc32(word.encode()) % 1000
