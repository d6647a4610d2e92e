"""`python -m inward` is the command `inward`."""

import sys

from inward.cli import main

if __name__ == "__main__":
    sys.exit(main())
