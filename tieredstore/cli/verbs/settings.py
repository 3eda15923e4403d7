"""Verbs about the command itself: its configuration, profiles, completion, manual, a sample."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.lazy import VerbGroup
from tieredstore.cli.logs.choice import say
from tieredstore.cli.options.collecting import number, path, switch, value
from tieredstore.cli.options.completing import complete_profiles
from tieredstore.cli.options.messages import split_pair
from tieredstore.cli.options.output import output_option, yes_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.tier_url import show_url


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script for verbs, options and the topics of a tier.

    \b
    bash:  eval "$(tieredstore completion bash)"               in ~/.bashrc
    zsh:   eval "$(tieredstore completion zsh)"                in ~/.zshrc, after compinit
    fish:  tieredstore completion fish > ~/.config/fish/completions/tieredstore.fish
    """
    from tieredstore.cli.options.completing import shell_script

    click.echo(shell_script(shell, context.find_root().command), nl=False)


@click.command("man")
@click.pass_context
def man(context: click.Context) -> None:
    """Print the manual page, which has the help of every verb.

    \b
    tieredstore man | man -l -
    tieredstore man > ~/.local/share/man/man1/tieredstore.1
    """
    from tieredstore.cli.help.manual import manual_page

    click.echo(manual_page(context.find_root()), nl=False)


SAMPLE_TABLES = {"topics": ("topic", "messages")}


@click.command("sample")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@number("--days", 1, 366, "How many days of messages.", default=7)
@number("--orders-per-day", 1, 10_000, "Mean number of orders of a day.", default=60)
@value(
    "--start",
    "DATE",
    "The first day, in UTC.",
    type=click.DateTime(["%Y-%m-%d"]),
    default="2026-03-02",
)
@number("--seed", None, None, "Equal seeds give equal messages.", default=1)
@output_option
def sample(
    folder: Path, days: int, orders_per_day: int, start: datetime, seed: int, out: Output
) -> None:
    """Write a sample into DIR: a broker's store and its tier.

    The messages are those of a small web shop: orders, payments and events over several days, with
    tags, keys and properties. Some payments are retried, and some end in the dead-letter topic. DIR
    must be missing or empty. It gets `tier`, `state`, `store` and `broker.conf`.
    """
    from tieredstore.jobs.sampling.shop import Shop
    from tieredstore.jobs.sampling.write import write_sample

    start_ms = int(start.replace(tzinfo=UTC).timestamp() * 1000)
    out.record(write_sample(folder, Shop(start_ms, days, orders_per_day, seed)), SAMPLE_TABLES)


@click.group("config", cls=VerbGroup)
def config() -> None:
    """Check and show a configuration. Back up and restore config/ of a broker's
    storePathRootDir."""


@config.command(
    "backup", short_help="Write topics, groups, offsets, users and timers of a broker to a file."
)
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@path(
    "--to",
    "FILE",
    "The file, replaced at once when it is there.",
    name="target",
    required=True,
    dir_okay=False,
)
@output_option
def backup(store: Path, target: Path, out: Output) -> None:
    """Write the config/ of STORE (a broker's storePathRootDir) to a file. The broker may run."""
    from tieredstore.broker.state.backup import back_up

    manifest = back_up(store / "config", target)
    out.record(
        {
            "backup": str(target),
            "format_version": manifest.format_version,
            "taken_timestamp": manifest.taken_ms,
            "files": sorted(manifest.files),
        }
    )


FINDINGS_TABLE = {"findings": ("level", "line", "key", "problem")}


@config.command("check", short_help="Report the errors in a broker.conf.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@output_option
def check(file: Path, out: Output) -> int:
    """Report the errors in FILE, a broker.conf, line by line.

    An error is a value that a verb or a broker refuses. A warning is a key without its intended
    effect. A note is a key of Java's without effect here. Exit code 2 if there is an error.
    """
    from tieredstore.cli.conf_file import Level, read_with_findings

    lines, findings = read_with_findings(file)
    counts = {f"{level}s": sum(finding.level is level for finding in findings) for level in Level}
    rows = [finding._asdict() for finding in findings]
    out.record(
        {"file": str(file), "settings": len(lines), **counts, "findings": rows}, FINDINGS_TABLE
    )
    return int(ExitCode.INVALID if counts["errors"] else ExitCode.OK)


@config.command("restore", short_help="Restore a backup.")
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@path("--from", "FILE", "What `config backup` wrote.", name="source", required=True, dir_okay=False)
@yes_option
@output_option
def restore(store: Path, source: Path, yes: bool, out: Output) -> None:
    """Replace config/ in STORE (a broker's storePathRootDir) by a backup. The broker must be
    stopped. The former content is kept beside it."""
    from tieredstore.broker.state.backup import list_files, read_backup, restore
    from tieredstore.jobs.target import refuse_broker

    folder = store / "config"
    backup = read_backup(source)
    refuse_broker(store)
    kept = restore(backup, folder) if yes else None
    out.record(
        {
            "backup": str(source),
            "taken_timestamp": backup.manifest.taken_ms,
            "restored": yes,
            "files": sorted(backup.contents),
            "replaced": [] if yes or not folder.is_dir() else list_files(folder),
            "kept": None if kept is None else str(kept),
        }
    )


COLUMNS = ("key", "value", "origin", "problem")


@config.command("show", short_help="Print the effective settings with their sources.")
@click.argument("keys", metavar="[KEY]…", nargs=-1)
@tier_options(has_defaults=True, needs_tier=False)
@switch("--all", "Those with their defaults too.", name="every")
@output_option
def show_config(keys: tuple[str, ...], tier: TierOptions, every: bool, out: Output) -> int:
    """Print the effective tier, state directory and settings with their sources.

    Only the settings KEYs are shown, or without KEYs all settings that were given a value. Secrets,
    and values of unknown keys, are not shown. Exit code 2 for an invalid value.
    """
    from tieredstore.cli.conf_file import Given, Level, list_effective, read_with_findings
    from tieredstore.cli.help.suggesting import hint_at

    lines, findings = ([], []) if tier.config is None else read_with_findings(tier.config)
    names = {"brokerClusterName": "cluster", "brokerName": "broker"}
    given = {
        key: Given(value, tier.origins.get(option, "command line"))
        for key, option in names.items()
        if (value := getattr(tier, option)) is not None
    }
    rows = [*list_places(tier), *list_effective(lines, findings, str(tier.config), given)]
    known = {str(row["key"]) for row in rows}
    for key in keys:
        if key not in known:
            if Path(key).is_file():
                raise click.UsageError(f"{key} is a file: give it as --config {key}")
            raise click.UsageError(f"unknown key {key!r}{hint_at(key, known)}")
    if keys:
        rows = [row for row in rows if row["key"] in keys]
    elif not every:
        rows = [row for row in rows if row["origin"] != "default"]
    out.rows(COLUMNS, rows)
    is_wrong = any(finding.level is Level.ERROR for finding in findings)
    return int(ExitCode.INVALID if is_wrong else ExitCode.OK)


def list_places(tier: TierOptions) -> Iterator[dict[str, object]]:
    """Yield a row for the tier, its state directory and its configuration."""
    places = {"tier": show_url(tier.tier) if tier.tier else None}
    places |= {name: _text(getattr(tier, name)) for name in ("state", "config")}
    for name, given in places.items():
        where = tier.origins.get(name, "default" if given is None else "command line")
        yield {"key": name, "value": given, "origin": where, "problem": None}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@click.group("profile", cls=VerbGroup)
def profile() -> None:
    """Name tiers, for --profile NAME and TIEREDSTORE_PROFILE.

    Profiles are stored in ~/.config/tieredstore/config.toml. Verbs that delete or restore accept no
    profile.
    """


@profile.command("delete", short_help="Delete a profile.")
@click.argument("name", shell_complete=complete_profiles)
def delete(name: str) -> None:
    """Delete the profile NAME. Its tier stays."""
    from tieredstore.cli.profiles import delete_profile

    path = delete_profile(name)
    say(f"{path}: profile {name} is deleted")


PROFILE_COLUMNS = ("profile", "default", "tier", "state", "config", "cluster", "broker")


@profile.command("list", short_help="List the profiles.")
@output_option
def list_profiles(out: Output) -> None:
    """List the profiles, and mark the default."""
    from tieredstore.cli.profiles import PLACES, load_profiles

    file = load_profiles()
    rows = []
    for name, profile in file.profiles.items():
        places: dict[str, str | None] = {key: profile.places.get(key) for key in PLACES}
        if places["tier"] is not None:
            places["tier"] = show_url(places["tier"])
        rows.append({"profile": name, "default": name == file.default, **places})
    if not out.rows(PROFILE_COLUMNS, rows):
        say(f"{file.path}: no profile")


@profile.command("set", short_help="Write a profile.")
@click.argument("name", shell_complete=complete_profiles)
@tier_options()
@value(
    "--variable",
    "SETTING=VARIABLE",
    "A setting of a broker.conf whose value is in a variable, such as a key. Repeatable.",
    name="pairs",
    multiple=True,
)
def set_profile(name: str, tier: TierOptions, pairs: tuple[str, ...]) -> None:
    """Write the profile NAME, or replace it.

    It holds no secrets: --variable names the environment variable of a secret.
    """
    from tieredstore.cli.profiles import write_profile
    from tieredstore.config import StoreConfig
    from tieredstore.registry import tier_at
    from tieredstore.tier_url import as_url

    tier_at(StoreConfig(), as_url(tier.tier))  # refuses a secret and an unknown key
    is_path = "://" not in tier.tier
    places = {
        "tier": str(Path(tier.tier).absolute()) if is_path else tier.tier,
        "state": None if tier.state is None else str(tier.state.absolute()),
        "config": None if tier.config is None else str(tier.config.absolute()),
        "cluster": tier.cluster,
        "broker": tier.broker,
    }
    variables = dict(split_pair("--variable", pair) for pair in pairs)
    _warn_of_unknown(variables)
    given = {key: value for key, value in places.items() if value is not None}
    path = write_profile(name, given, variables)
    say(f"{path}: profile {name} is written")


def _warn_of_unknown(keys: Iterable[str]) -> None:
    from tieredstore.broker.settings import BROKER_FIELDS_BY_KEY
    from tieredstore.cli.conf_file import describe_unknown, find_plugin_fields
    from tieredstore.config import FIELDS_BY_KEY

    plugin_fields = find_plugin_fields(())
    known = {**FIELDS_BY_KEY, **BROKER_FIELDS_BY_KEY, **plugin_fields}
    for key in keys:
        if key not in known:
            say(f"warning: --variable: {key}: {describe_unknown(key, plugin_fields)}")


VARIABLES_TABLE = {"variables": ("setting", "variable", "is_set")}


@profile.command("show", short_help="Show a profile.")
@click.argument("name", required=False, shell_complete=complete_profiles)
@output_option
def show_profile(name: str | None, out: Output) -> None:
    """Show the profile NAME, or the default one."""
    from tieredstore.cli.options.defaults import PROFILE_VARIABLE
    from tieredstore.cli.profiles import PLACES, load_profiles

    file = load_profiles()
    chosen = name or os.environ.get(PROFILE_VARIABLE) or file.default
    if not chosen:
        raise click.UsageError(f"no profile counts now: name one, or set {PROFILE_VARIABLE}")
    profile = file.find(chosen)
    places: dict[str, object] = {key: profile.places.get(key) for key in PLACES}
    places["tier"] = show_url(profile.places["tier"]) if "tier" in profile.places else None
    variables = [
        {"setting": key, "variable": variable, "is_set": bool(os.environ.get(variable))}
        for key, variable in profile.variables.items()
    ]
    record = {"profile": chosen, "file": str(file.path), **places, "variables": variables}
    out.record(record, VARIABLES_TABLE)
