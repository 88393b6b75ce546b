"""`python -m lpjepa` is the command `lpjepa`; torchrun needs it in this form."""

import sys

from lpjepa.cli import program

if __name__ == "__main__":
    sys.exit(program())
