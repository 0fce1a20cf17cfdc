"""`python -m flodl.cli`, the same as `fdl`."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
