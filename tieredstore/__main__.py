"""Entry point of `python -m tieredstore`: the command line."""

from __future__ import annotations

from tieredstore.cli.main import main

if __name__ == "__main__":
    main()
