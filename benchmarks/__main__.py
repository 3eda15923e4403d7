"""`scripts/bench`: measure our store and Java's in alternating passes of one run."""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from benchmarks.java_peer import JavaPeer
from benchmarks.model import FULL, QUICK, Measured, Row, Sizes, Workbench
from benchmarks.report import as_json, environment, markdown, one_line, outcomes, write_document
from benchmarks.rows import ROWS, S3_ROWS
from tieredstore.server_process import tune_server_process

ALL_ROWS = (*ROWS, *S3_ROWS)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, 2 pairs, no warm-up: a trial"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="ROW,…",
        help="rows by name or prefix, s3- for those of an object store",
    )
    parser.add_argument("--pairs", type=int, default=0, help="alternating pairs: 7, with --quick 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all passes there")
    parser.add_argument("--document", type=Path, metavar="PAGE", help="put the tables into a page")
    parser.add_argument("--no-java", action="store_true", help="our side alone")
    parser.add_argument("--one-core", action="store_true", help="keep our side on one core")
    parser.add_argument("--folder", type=Path, help="work on this disk (default: the temporary)")
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    return parser.parse_args()


def chosen(only: str) -> list[Row]:
    wanted = [name for name in only.split(",") if name]
    if not wanted:
        return list(ROWS)
    rows = [row for row in ALL_ROWS if any(row.name.startswith(name) for name in wanted)]
    if not rows:
        sys.exit(f"bench: no row is called {only}. There are {', '.join(r.name for r in ALL_ROWS)}")
    return rows


def warm_memory(folder: Path, size_mib: int) -> None:
    """Write and remove a file of `size_mib` MiB through a mapping, so that the next pass finds free
    pages and need not request them from the host."""
    if not size_mib:
        return
    path = folder / "warm-memory"
    with path.open("w+b") as file:
        file.truncate(size_mib << 20)
        with mmap.mmap(file.fileno(), size_mib << 20) as view:
            piece = bytes(1 << 20)
            for start in range(0, size_mib << 20, 1 << 20):
                view[start : start + len(piece)] = piece
    path.unlink()


def measure(
    row: Row, bench: Workbench, peer: JavaPeer | None, pairs: int, *, is_trial: bool
) -> Measured:
    """Warm up our store and Java's, then alternate between them. `is_trial`: skip the warm-up."""
    measured = Measured(row)
    fresh_mib = 0 if is_trial else row.fresh_mib
    request: dict[str, Any] | None = row.java(bench.sizes) if row.java and peer else None
    try:
        with row.ours(bench) as run:
            for _ in range(row.java_warm_up if request and not is_trial else 0):
                assert peer is not None
                assert request is not None
                peer.ask(request)
            for _ in range(0 if is_trial else row.warm_up):
                run()
            gc.freeze()  # As a server does after its recovery.
            for _ in range(pairs):
                gc.collect()
                warm_memory(bench.folder.parent, fresh_mib)
                found = run()
                if "beside" in found:
                    measured.java.append(found.pop("beside"))
                measured.ours.append(found)
                if request is not None:
                    assert peer is not None
                    warm_memory(bench.folder.parent, fresh_mib)
                    measured.java.append(peer.ask(request))
    except Exception as error:
        traceback.print_exc()
        measured.error = f"{type(error).__name__}: {error}"
    return measured


def greet(
    peer: JavaPeer | None, missing: str
) -> tuple[dict[str, Any] | None, JavaPeer | None, str]:
    """Return Java's description of its environment, the Java process, and the reason why Java is
    missing. Without Java, the first two are None, and the benchmark continues."""
    if peer is None:
        return None, None, missing
    try:
        return peer.ask({"row": "env"}), peer, ""
    except RuntimeError as error:
        peer.close()
        return None, None, str(error)


def main() -> int:
    given = arguments()
    if given.list:
        print(
            "\n".join(f"{row.name:20} {row.what}, {row.face}, {row.durability}" for row in ALL_ROWS)
        )
        return 0
    rows = chosen(given.only)
    sizes: Sizes = QUICK if given.quick else FULL
    pairs = given.pairs or (2 if given.quick else 7)
    missing = "left out by --no-java" if given.no_java else JavaPeer.missing()
    if all(row.java is None for row in rows):
        missing = "not asked for"
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="tieredstore-bench-", dir=given.folder) as name:
        folder = Path(name)
        # Before this process is pinned, since a child inherits the cores.
        peer = None if missing else JavaPeer(folder / "java")
        if given.one_core and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        tune_server_process()
        try:
            java, peer, missing = greet(peer, missing)
            print(f"Java: {java or missing}, {pairs} pairs", file=sys.stderr)
            for row in rows:
                print(f"{row.name}: {row.what}", file=sys.stderr, flush=True)
                bench = Workbench(folder / row.name, sizes)
                measured.append(measure(row, bench, peer, pairs, is_trial=given.quick))
                for found in outcomes(measured[-1:]):
                    print(f"  {one_line(found)}", file=sys.stderr, flush=True)
        finally:
            if peer:
                peer.close()
        machine = environment(java, folder)
    print(markdown(measured))
    if given.document:
        write_document(given.document, measured, machine, pairs)
    if given.json:
        given.json.write_text(as_json(measured, machine))
    return 1 if any(one.error for one in measured) else 0


if __name__ == "__main__":
    sys.exit(main())
