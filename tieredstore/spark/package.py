"""Writes this package as a zip for Spark: python -m tieredstore.spark.package FILE.zip"""

from __future__ import annotations

import sys
from pathlib import Path

from tieredstore.spark.sessions.shipping import build_zip


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".zip"):
        sys.exit("usage: python -m tieredstore.spark.package FILE.zip")
    build_zip(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
