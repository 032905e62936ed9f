"""Runs the command as ``python -m hopstream.cli``, if its script is not installed."""

from __future__ import annotations

import sys

from hopstream.cli import main

if __name__ == "__main__":
    sys.exit(main())
