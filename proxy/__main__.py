"""`python -m proxy` is `qwen3-tts-triton`."""

import sys

from proxy.cli import main

if __name__ == "__main__":
    sys.exit(main())
