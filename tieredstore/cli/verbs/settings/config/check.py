"""`tieredstore config check`."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output

TABLE = {"findings": ("level", "line", "key", "problem")}


@click.command("check")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@output_option
def command(file: Path, out: Output) -> int:
    """Say what is wrong with FILE, a broker.conf, line by line.

    An error is what a verb or a broker refuses; a warning is a key that does not count as it
    stands; a note is one of Java's that means nothing here. Exit code 2 when there is an error.
    """
    from tieredstore.cli.conf_file import Level, read_with_findings

    lines, findings = read_with_findings(file)
    counts = {f"{level}s": sum(finding.level is level for finding in findings) for level in Level}
    rows = [finding._asdict() for finding in findings]
    out.record({"file": str(file), "settings": len(lines), **counts, "findings": rows}, TABLE)
    return int(ExitCode.INVALID if counts["errors"] else ExitCode.OK)
