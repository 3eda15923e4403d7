"""Options that say which tier a verb works on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from tieredstore.cli.options.collecting import Command, Settings, collect

PLACE = "file:///dir or s3://bucket/prefix"
_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Which tier a verb works on. cluster and broker may be left out where the tier has one."""

    tier: str
    state: Path | None = None
    config: Path | None = None
    cluster: str | None = None
    broker: str | None = None

    @property
    def required_state(self) -> Path:
        """The state directory, of a verb that requires it."""
        assert self.state is not None
        return self.state


def tier_options(
    name: str = "tier",
    *,
    flag: str = "",
    tier: str = f"Where the tier is: {PLACE}.",
    state: str | None = (
        "State directory (config/tieredStoreMetadata.json); without it, the tier alone is listed."
    ),
    needs_state: bool = False,
    config: str = "A broker.conf; the command line beats it.",
    cluster: str | None = "Cluster name (brokerClusterName).",
    broker: str | None = "Broker name (brokerName).",
) -> Callable[[Command], Command]:
    """Add --tier, --state, --config, --cluster and --broker; the command gets them as the
    `TierOptions` `name`.

    flag: `from` for --from, --from-state and --from-config. The others are the texts of the
    options, None for one that the verb does not have.
    """
    prefix = f"--{flag}-" if flag else "--"
    options: dict[str, Settings] = {
        "tier": {
            "flag": f"--{flag or 'tier'}",
            "required": True,
            "metavar": "URL",
            "help": tier,
        }
    }
    if state is not None:
        options["state"] = {
            "flag": f"{prefix}state",
            "required": needs_state,
            "metavar": "DIR",
            "type": _PATH,
            "help": state,
        }
    options["config"] = {
        "flag": f"{prefix}config",
        "metavar": "FILE",
        "type": _PATH,
        "help": config,
    }
    for field, text in (("cluster", cluster), ("broker", broker)):
        if text is not None:
            options[field] = {"flag": f"--{field}", "metavar": "NAME", "help": text}
    return collect(name, TierOptions, options)


take_over_option = click.option(
    "--take-over", is_flag=True, help="End another writer's right, where the backend can do that."
)
