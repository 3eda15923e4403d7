"""Where a tier, its state and its configuration come from when the command line does not say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tieredstore.errors import Invalid
from tieredstore.tier_url import as_url, show_url

VARIABLES: Final = {
    "tier": "TIEREDSTORE_TIER",
    "state": "TIEREDSTORE_STATE",
    "config": "TIEREDSTORE_CONFIG",
}
"""Option -> the variable of the environment that stands for it; an empty one counts as none."""
PROFILE_VARIABLE: Final = "TIEREDSTORE_PROFILE"
_PATHS: Final = frozenset({"state", "config"})


class Source(NamedTuple):
    """Options that belong together, and for each where it stands, for people. settings: of a
    broker.conf, as variables of the environment have them."""

    values: Mapping[str, str]
    origins: Mapping[str, str]
    settings: Mapping[str, str]


def add_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the command line, and of those that are None what the sources have;
    `origins` says what comes from where, `properties` which settings come with it. A source that
    names another tier has nothing to say: its state and its configuration are that tier's. Raises
    Invalid for profiles that cannot be read, and for a --profile of another tier."""
    properties: Mapping[str, str] = {}
    found, origins = dict(given), dict[str, str]()
    profile = found.pop("profile", None)
    for source in _sources(profile):
        tier = source.values.get("tier")
        if _is_of_another(tier, found.get("tier")):
            if profile is not None and "tier" not in origins:
                raise Invalid(
                    f"--profile {profile}: its tier is {show_url(str(tier))}, and --tier names "
                    "another one"
                )
            continue
        for name, value in source.values.items():
            if name in found and found[name] is None:
                found[name] = Path(value) if name in _PATHS else value
                origins[name] = source.origins[name]
        if source.settings:
            properties = source.settings
    return {**found, "origins": origins, "properties": properties}


def _is_of_another(tier: str | None, chosen: str | None) -> bool:
    return tier is not None and chosen is not None and as_url(tier) != as_url(chosen)


def _sources(profile: str | None) -> Iterator[Source]:
    """What is asked for by name comes first, what counts for want of that last."""
    if profile is not None:
        yield _read_profile(profile)
    named = {name: variable for name, variable in VARIABLES.items() if os.environ.get(variable)}
    yield Source({name: os.environ[variable] for name, variable in named.items()}, named, {})
    if profile is None:
        yield from _usual_profile()


def _usual_profile() -> Iterator[Source]:
    from tieredstore.cli.profiles import load_profiles, profile_path

    name = os.environ.get(PROFILE_VARIABLE)
    if not name and not profile_path().exists():
        return
    name = name or load_profiles().default
    if name:
        yield _read_profile(name)


def _read_profile(name: str) -> Source:
    from tieredstore.cli.profiles import load_profiles
    from tieredstore.properties import PluginProperties

    found = load_profiles().find(name)
    origin = f"profile {name}"
    settings = PluginProperties(found.read_settings(), origin)
    return Source(found.places, dict.fromkeys(found.places, origin), settings)
