"""`python -m tokenriver` is the command `tokenriver`."""

import sys

from tokenriver.cli import main

if __name__ == "__main__":
    sys.exit(main())
