"""`python -m zkgroups_cli` is the `zkgroups` command."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
