"""``python -m rawkern``: the command line."""

import sys

from rawkern.cli import main

if __name__ == "__main__":
    sys.exit(main())
