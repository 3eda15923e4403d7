"""Report of the benchmark, as JSON and as a table."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.model import AS_IT_IS, Measured, Outcome, outcome, short
from tieredstore.message.core import IS_COMPILED

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
S3_BEGIN, S3_END = "<!-- s3 results: begin -->", "<!-- s3 results: end -->"


def environment(java: dict[str, Any] | None, folder: Path) -> dict[str, Any]:
    """Describe the machine without host names."""
    import numpy as np

    answer = subprocess.run(
        ["df", "--output=fstype", str(folder)], capture_output=True, text=True, check=False
    )
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "machine": platform.machine(),
        "file_system": (answer.stdout.split() or ["unknown"])[-1],
        "python": platform.python_version(),
        "python_options": list_build_options(),
        "compiled_core": IS_COMPILED,
        "numpy": np.__version__,
        "java": java,
    }


def list_build_options() -> list[str]:
    """Return the build options of the interpreter (CONFIG_ARGS), without paths. Without
    --enable-optimizations, it is about 1.2 times slower."""
    given = shlex.split(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return [one for one in given if one.startswith("--") and "/" not in one]


def describe_python(environment: dict[str, Any]) -> str:
    """Return the interpreter, its build options, and whether the compiled core is used."""
    options = " ".join(environment["python_options"]) or "no options"
    core = "with" if environment["compiled_core"] else "without"
    return f"Python {environment['python']} ({options}), {core} the compiled core"


def outcomes(measured: Sequence[Measured]) -> list[Outcome]:
    return [outcome(one, figure) for one in measured if one.ours for figure in one.row.figures]


def as_json(measured: Sequence[Measured], environment: dict[str, Any]) -> str:
    document = {
        "environment": environment,
        "rows": [
            {
                "row": one.row.name,
                "what": one.row.what,
                "face": one.row.face,
                "durability": one.row.durability,
                "pull": one.row.pull,
                "peer": one.row.peer,
                "no_peer": one.row.no_peer,
                "error": one.error,
                "ours": one.ours,
                "java": one.java,
                "figures": [_figure(outcome(one, f)) for f in one.row.figures if one.ours],
            }
            for one in measured
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def _figure(found: Outcome) -> dict[str, Any]:
    return {
        "name": found.figure.name,
        "unit": found.figure.unit,
        "ours": found.ours,
        "java": found.java,
        "ratio": found.ratio,
        "ratio_spread": [found.ratio_low, found.ratio_high],
        "targets": dict(found.verdicts),
    }


def _number(value: float | None, unit: str, no_peer: str) -> str:
    if value is None:
        return f"– ({no_peer})" if no_peer else "–"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    return f"{value:.3g} {unit}" if unit in AS_IT_IS else f"{short(value)} {unit}"


def cells(found: Outcome) -> tuple[str, ...]:
    row, figure = found.row, found.figure
    ratio = "–"
    if found.ratio is not None:
        ratio = f"{found.ratio:.2f} ({found.ratio_low:.2f}–{found.ratio_high:.2f})"
    targets = ", ".join(f"{text}: {'met' if met else 'missed'}" for text, met in found.verdicts)
    return (
        row.name,
        figure.name,
        _number(found.ours, figure.unit, ""),
        _number(found.java, figure.unit, row.no_peer),
        ratio,
        targets or "–",
    )


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def markdown(measured: Sequence[Measured]) -> str:
    """Return the table of figures, then the failures, as Markdown."""
    rows = [one.row for one in measured]
    parts = []
    for peer in dict.fromkeys(row.peer for row in rows):
        found = outcomes([one for one in measured if one.row.peer == peer])
        headers = ("row", "figure", "ours", peer, f"ours / {peer} (spread)", "target")
        parts.append(_table(headers, [cells(figure) for figure in found]))
    failed = [one for one in measured if one.error]
    parts += [f"{one.row.name} failed: {one.error.splitlines()[0]}" for one in failed]
    return "\n\n".join(parts)


def one_line(found: Outcome) -> str:
    return " | ".join(cells(found))


def write_document(
    page: Path, measured: Sequence[Measured], environment: dict[str, Any], pairs: int
) -> None:
    """Write the tables into a page, between two marker lines. Rows about object stores have a
    second pair of marker lines."""
    for begin, end, rows in (
        (BEGIN, END, [one for one in measured if not one.row.name.startswith("s3-")]),
        (S3_BEGIN, S3_END, [one for one in measured if one.row.name.startswith("s3-")]),
    ):
        if rows:
            text = page.read_text()
            page.write_text(_between(text, begin, end, rows, environment, pairs))


def _between(
    text: str,
    begin: str,
    end: str,
    measured: Sequence[Measured],
    environment: dict[str, Any],
    pairs: int,
) -> str:
    java = environment["java"]
    sides = f"JDK {java['java']}, RocketMQ {java['rocketmq']}" if java else "no Java side"
    machine = (
        f"Machine: {environment['cores']} cores ({environment['machine']}), "
        f"{environment['memory_gib']} GiB, {environment['file_system']}. "
        f"{describe_python(environment)}, numpy {environment['numpy']}, {sides}. {pairs} pairs."
    )
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    return f"{before}{begin}\n{machine}\n\n{markdown(measured)}\n{end}{after}"
