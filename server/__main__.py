"""`python -m server` is the `slipstream` command, for where scripts are not on the path."""

import sys

from server.cli import main

if __name__ == "__main__":
    sys.exit(main())
