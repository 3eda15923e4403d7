"""Options for the tier a verb uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from tieredstore.cli.help.suggesting import UnnamedOption
from tieredstore.cli.logs.choice import say
from tieredstore.cli.options.collecting import Command, Settings, collect, switch
from tieredstore.cli.options.completing import complete_profiles
from tieredstore.cli.options.defaults import VARIABLES, add_defaults

PLACE = "a folder, file:///dir or s3://bucket/prefix"
_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Tier that a verb uses. `cluster` and `broker` are optional if the tier has only one.
    `origins`: sources of values that are not from the command line. `properties`: broker.conf
    settings from a profile."""

    tier: str
    state: Path | None = None
    config: Path | None = None
    cluster: str | None = None
    broker: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    properties: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def required_state(self) -> Path:
        """State directory, for verbs that require one."""
        assert self.state is not None
        return self.state


def tier_options(
    name: str = "tier",
    *,
    flag: str = "",
    has_defaults: bool = False,
    tier: str = f"Where the tier is: {PLACE}.",
    state: str | None = (
        "State directory (config/tieredStoreMetadata.json). Without it, the tier alone is listed."
    ),
    needs_tier: bool = True,
    needs_state: bool = False,
    config: str = "A broker.conf. The command line overrides it.",
    cluster: str | None = "Cluster name (brokerClusterName).",
    broker: str | None = "Broker name (brokerName).",
) -> Callable[[Command], Command]:
    """Add --tier, --state, --config, --cluster and --broker, passed to the command as one
    `TierOptions` named `name`. `flag`: name of the tier's option. For example, `from` adds --from,
    --from-state and --from-config. `has_defaults`: True if the environment or a profile may name
    the tier (`defaults.py`), which also adds --profile. Verbs that delete or restore allow no
    defaults. `needs_tier`, `needs_state`: True if a tier or a state directory is required. The
    other arguments are help texts of options, or None to omit the option."""
    prefix = f"--{flag}-" if flag else "--"
    options: dict[str, Settings] = {
        "tier": {
            "flag": f"--{flag or 'tier'}",
            "required": not has_defaults,
            "metavar": "URL",
            "help": tier,
        }
    }
    if state is not None:
        options["state"] = {
            "flag": f"{prefix}state",
            "required": needs_state and not has_defaults,
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
    for option, text in (("cluster", cluster), ("broker", broker)):
        if text is not None:
            options[option] = {"flag": f"--{option}", "metavar": "NAME", "help": text}
    if not has_defaults:
        return collect(name, TierOptions, options)
    options["profile"] = {
        "flag": "--profile",
        "metavar": "NAME",
        "help": "A profile that says these (tieredstore profile).",
        "shell_complete": complete_profiles,
    }
    needed = {"tier": needs_tier, "state": needs_state}
    required = [option for option, is_needed in needed.items() if is_needed]
    return collect(name, lambda **given: _complete(given, required), options)


def _complete(given: dict[str, object], required: Sequence[str]) -> TierOptions:
    """Fill in missing options from the environment or a profile. Raises a usage error if a required
    option is still missing."""
    found = add_defaults(given, lambda error: say(f"no default profile: {error}", "warning"))
    for name in required:
        if found.get(name) is None:
            raise make_missing_option(name)
    return TierOptions(**{**found, "tier": found["tier"] or ""})


def make_missing_option(name: str) -> click.UsageError:
    return UnnamedOption(
        f"Missing option '--{name}' (or set {VARIABLES[name]}, or choose a --profile)"
    )


take_over_option = switch(
    "--take-over", "End another writer's right, where the backend can do that."
)
