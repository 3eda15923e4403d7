"""The arguments of `scripts/demo`, checked before anything is installed, emptied or written.

As a program, this module checks them and prints the environment for `scripts/setup_env.py`. It
needs only Python 3.11 and the standard library.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MARK = ".made-by-scripts-demo"
BUNDLED = "java-broker"
_MADE = ("tier", "state", "broker", "offload.json", "verify.json", "spark.log")


@dataclass(frozen=True, slots=True)
class Options:
    """Checked options. `store`, `config`: paths of a store and its broker.conf, or None for the
    bundled store. `made`: names of the files that the demo creates in `folder`. They are removed
    when the demo starts, unless `keep` is set."""

    folder: Path
    store: Path | None
    config: Path | None
    broker: str | None
    cluster: str | None
    topics: str | None
    keep: bool
    spark: bool

    @property
    def made(self) -> tuple[str, ...]:
        return _MADE if self.store is not None else (BUNDLED, *_MADE)

    @property
    def environment(self) -> str:
        return "spark" if self.spark else "tables"


def parse(words: Sequence[str] | None = None) -> Options:
    """Parse and check arguments. An error ends the program with a message and exit code 2."""
    parser = _parser()
    given = parser.parse_args(words)
    folder = Path(os.path.abspath(given.folder))  # noqa: PTH100 - a link stays what was typed
    options = Options(
        folder,
        given.store,
        given.config,
        given.broker,
        given.cluster,
        given.topics,
        given.keep,
        not given.no_spark,
    )
    fault = _find_fault(options)
    if fault is not None:
        parser.error(fault)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Offload a RocketMQ store into a tier, read it back from the tier alone, "
        "verify every message and count them with Spark SQL. Then run a broker with a producer, a "
        "consumer and a replay from its tier. Without arguments: the bundled store of a Java "
        "broker.",
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="a store of your own (storePathRootDir), which is only read",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="its broker.conf, which has the two names"
    )
    parser.add_argument("--broker", metavar="NAME", help="broker name, when there is no --config")
    parser.add_argument("--cluster", metavar="NAME", help="cluster name, likewise")
    parser.add_argument("--topics", metavar="T,…", help="only these topics (shell patterns)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "demo",
        metavar="DIR",
        help="where tier and state go (default: demo/ in this clone). What this script made there "
        "before is removed first, nothing else",
    )
    parser.add_argument("--keep", action="store_true", help="keep the tier of the last run")
    parser.add_argument(
        "--no-spark",
        action="store_true",
        help="without the part in Spark SQL, for which PySpark is downloaded once",
    )
    return parser


def _find_fault(options: Options) -> str | None:
    folder, store = options.folder, options.store
    if folder.exists():
        if not folder.is_dir():
            return f"--folder {folder}: expected a folder, found a file"
        if not (folder / MARK).exists() and any(folder.iterdir()):
            return f"--folder {folder}: not empty, and not made by this script; give another one"
    if store is None:
        if options.config or options.broker or options.cluster:
            return "--config, --broker and --cluster belong to a --store"
        return None
    if not (store / "commitlog").is_dir():
        return f"--store {store}: expected the directory of a broker's store, with commitlog/ in it"
    for name in options.made:
        if (folder / name).resolve() in (store.resolve(), *store.resolve().parents):
            return f"--store {store}: it is in {folder / name}, which this script empties"
    if options.config is not None:
        return None if options.config.is_file() else f"--config {options.config}: no such file"
    if options.broker and options.cluster:
        return None
    beside = store / os.pardir / "broker.conf"
    example = beside if beside.is_file() else "FILE"
    return f"--store {store}: give --config {example}, or --broker and --cluster"


if __name__ == "__main__":
    print(parse().environment)
