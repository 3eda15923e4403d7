"""Default values for the options of a tier, its state and its configuration, from the environment
and from profiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.tier_url import as_url, show_url

VARIABLES: Final = {
    "tier": "TIEREDSTORE_TIER",
    "state": "TIEREDSTORE_STATE",
    "config": "TIEREDSTORE_CONFIG",
}
"""Environment variables by option. An empty variable counts as not set."""
PROFILE_VARIABLE: Final = "TIEREDSTORE_PROFILE"
_PATHS: Final = frozenset({"state", "config"})


class Source(NamedTuple):
    """Option values from one source (environment or profile). `origins`: name of the source of each
    value, for messages. `read_settings`: returns the broker.conf settings whose values are in
    environment variables."""

    values: Mapping[str, str]
    origins: Mapping[str, str]
    read_settings: Callable[[], Mapping[str, str]]


def add_defaults(
    given: Mapping[str, Any], on_problem: Callable[[TieredStoreError], None]
) -> dict[str, Any]:
    """Return the command line's options, with missing ones taken from the environment or a profile.
    `origins` in the result has the source of each such value, and `properties` the settings from a
    profile. A source that names another tier is ignored, because its state and configuration belong
    to that tier.

    An unreadable default profile is only reported to `on_problem` if the tier is already known.
    Raises Invalid and Unavailable for other unreadable profiles, and Invalid if --profile names a
    profile of another tier."""
    properties: Mapping[str, str] = {}
    found, origins = dict(given), dict[str, str]()
    profile = found.pop("profile", None)
    for read_source in _list_sources(profile):
        try:
            source = read_source()
        except TieredStoreError as error:
            if found.get("tier") is None or read_source is not _read_default_profile:
                raise
            on_problem(error)
            continue
        if source is None:
            continue
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
        properties = source.read_settings() or properties
    return {**found, "origins": origins, "properties": properties}


def _is_of_another(tier: str | None, chosen: str | None) -> bool:
    return tier is not None and chosen is not None and as_url(tier) != as_url(chosen)


def _list_sources(profile: str | None) -> list[Callable[[], Source | None]]:
    if profile is not None:
        return [partial(_read_profile, profile), _read_environment]
    name = os.environ.get(PROFILE_VARIABLE)
    return [_read_environment, partial(_read_profile, name) if name else _read_default_profile]


def _read_environment() -> Source:
    named = {name: variable for name, variable in VARIABLES.items() if os.environ.get(variable)}
    return Source({name: os.environ[variable] for name, variable in named.items()}, named, dict)


def _read_default_profile() -> Source | None:
    from tieredstore.cli.profiles import load_profiles

    name = load_profiles().default
    return None if name is None else _read_profile(name)


def _read_profile(name: str) -> Source:
    from tieredstore.cli.profiles import load_profiles
    from tieredstore.properties import PluginProperties

    found = load_profiles().find(name)
    origin = f"profile {name}"
    return Source(
        found.places,
        dict.fromkeys(found.places, origin),
        lambda: PluginProperties(found.read_settings(), origin),
    )
