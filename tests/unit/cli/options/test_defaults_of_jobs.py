"""The defaults shown by a command equal those of the job's options."""

from __future__ import annotations

from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any

import pytest

from tieredstore.jobs import options
from tieredstore.jobs.exporting.partition import parse_partition_by

VERBS: dict[str, type[Any]] = {
    "copying.backfill": options.BackfillTierOptions,
    "copying.copy": options.CopyTierOptions,
    "jobs.export": options.ExportOptions,
    "copying.offload": options.OffloadOptions,
    "checking.report": options.ReportOptions,
    "checking.verify": options.VerifyOptions,
    "jobs.compact_export": options.CompactExportOptions,
    "jobs.compact_index": options.CompactIndexOptions,
    "jobs.rebuild_index": options.RebuildIndexOptions,
    "jobs.rebuild_metadata": options.RebuildMetadataOptions,
}
WITH_DEFAULTS = {"copying.backfill", "copying.copy", "jobs.export", "jobs.compact_export"}


@pytest.mark.parametrize(("verb", "kind"), VERBS.items())
def test_a_verb_has_the_defaults_of_its_job(verb: str, kind: type[Any]) -> None:
    module, _, name = verb.partition(".")
    command = getattr(import_module(f"tieredstore.cli.verbs.{module}"), name)
    defaults = {one.name: one.default for one in fields(kind) if one.default is not MISSING}
    compared = 0
    for parameter in command.params:
        shown = parameter.to_info_dict()["default"]
        name = parameter.name.rpartition("__")[2]
        if name in defaults and shown:
            expected: Any = defaults[name]
            if name == "partition_by":
                shown, expected = parse_partition_by(shown), parse_partition_by(expected)
            assert shown == expected, name
            compared += 1
    assert bool(compared) == (verb in WITH_DEFAULTS)
