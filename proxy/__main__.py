"""`python -m proxy`, which is `qwen3-tts-triton`. Ctrl-C ends it without a traceback, also while it still imports."""

import sys

INTERRUPTED = 130  # what shells call 128 + SIGINT


def main() -> int:
    """Run the command line; its exit code."""
    try:
        from proxy import cli

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
