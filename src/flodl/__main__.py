"""`python -m flodl`, the same as `fdl`."""

import sys

from flodl.cli import main

if __name__ == "__main__":
    sys.exit(main())
