"""The speech engine: Qwen3-TTS from text to 24 kHz samples. Knows nothing of HTTP or of Triton's Python module."""
