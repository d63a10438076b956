"""`python -m tokenriver` is the command `tokenriver`."""

from tokenriver.cli import main

if __name__ == "__main__":
    main()
