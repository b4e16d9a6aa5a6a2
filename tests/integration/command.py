"""A child that is the command line: `python -m integration.command ARGUMENTS`."""

from __future__ import annotations

from penstock.cli.main import main

if __name__ == "__main__":
    main()
