"""The command `tokenriver`, also as `python -m tokenriver`; Ctrl-C while it is still importing is one line too."""

import gc
import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, *usual[1:])  # looking for garbage in what is being imported takes 0.1 s
    try:
        from tokenriver.cli import main as run

        gc.set_threshold(*usual)
    except KeyboardInterrupt:
        print("tokenriver: interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
