"""Completion of topic names in option values. The topics come from the tier named before the
cursor. The user waits after pressing Tab, so the search has a time limit and errors are not
shown."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tieredstore.errors import TieredStoreError

if TYPE_CHECKING:
    from tieredstore.cli.options.tier import TierOptions

VARIABLE: Final = "_TIEREDSTORE_COMPLETE"
"""Environment variable that the completion script of a shell sets."""
LIMIT_SECONDS = 0.3
"""Maximum time from the start of the process to the end of the search for topics, in seconds."""
_INDEX_FOLDER = "rmq_sys_INDEX"


def complete_topics(
    context: click.Context,
    parameter: click.Parameter,
    incomplete: str,
) -> list[str]:
    """Return the topics that start with the last name in `incomplete`. If the option takes a list,
    names are separated by commas."""
    taken, comma, begun = incomplete.rpartition(",") if parameter.multiple else ("", "", incomplete)
    tier = _given_tier(context)
    if tier is None:
        return []
    found = look_in_time(lambda: find_topics(tier))
    return [f"{taken}{comma}{name}" for name in found if name.startswith(begun)]


def complete_profiles(
    context: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    from tieredstore.cli.profiles import load_profiles

    try:
        names = load_profiles().profiles
    except TieredStoreError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _given_tier(context: click.Context) -> TierOptions | None:
    """Return the tier named by the options before the cursor, or None. For the verb `copy` this is
    the tier of --from."""
    from tieredstore.cli.options.defaults import add_defaults
    from tieredstore.cli.options.tier import TierOptions

    names = (parameter.name or "" for parameter in context.command.params)
    group = next((name[: -len("tier")] for name in names if name.endswith("__tier")), None)
    if group is None:
        return None
    fields = ("tier", "state", "config", "cluster", "broker")
    given = {name: context.params.get(f"{group}{name}") for name in fields}
    if not any(one.required for one in context.command.params if one.name == f"{group}tier"):
        given["profile"] = context.params.get(f"{group}profile")
        try:
            given = add_defaults(given, lambda _: None)
        except TieredStoreError:
            return None
    return TierOptions(**given) if given["tier"] else None  # type: ignore[arg-type]


def look_in_time(look: Callable[[], Iterable[str]]) -> list[str]:
    """Return the sorted result of `look`. Returns an empty list if it raises an error or if no time
    is left. If `look` takes too long, the process ends without an answer."""
    seconds = LIMIT_SECONDS - _measure_age()
    if seconds <= 0:
        return []
    with open(os.devnull, "w") as nowhere:
        # By a thread that runs even while a call holds the interpreter.
        faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)
        try:
            return sorted(set(look()))
        except Exception:
            return []
        finally:
            faulthandler.cancel_dump_traceback_later()


def _measure_age() -> float:
    """Return the seconds since the process started. If the system does not report this, return the
    CPU time of the process."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        begin = ticks / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - begin
    except (OSError, AttributeError):
        return time.process_time()


def find_topics(tier: TierOptions) -> Iterator[str]:
    """Yield the topics of a tier. They are read from the state directory if given, from the folders
    of a tier in files, or else from a listing. Raises the errors of these reads."""
    from tieredstore.tier_url import as_url, parse_tier_url

    if tier.state is not None:
        yield from _topics_of_state(tier.state)
        return
    url = parse_tier_url(as_url(tier.tier))
    if url.scheme == "file":
        for broker in Path(url.path).glob("*_*/*"):  # a cluster's hash and name, the broker's
            if broker.is_dir():
                yield from (entry.name for entry in broker.iterdir() if _is_topic(entry))
        return
    import logging

    from tieredstore.scan.location import locate

    logging.disable()
    place = locate(
        tier.tier,
        cluster=tier.cluster,
        broker=tier.broker,
        config=tier.config,
        properties=tier.properties,
    )
    for listing in place.connect().list():
        topic = listing.id.path.split("/")[1]
        if topic != _INDEX_FOLDER:
            yield topic


def _is_topic(entry: Path) -> bool:
    return entry.name != _INDEX_FOLDER and not entry.name.startswith(".") and entry.is_dir()


def _topics_of_state(state: Path) -> Iterator[str]:
    import orjson

    metadata = orjson.loads((state / "config" / "tieredStoreMetadata.json").read_bytes())
    for table in ("commitLogFileSegmentTable", "consumeQueueFileSegmentTable"):
        yield from (path.split("/")[1] for path in metadata.get(table, {}))


def shell_script(shell: str, command: click.Command) -> str:
    """Return the completion script for a shell. Raises click.UsageError for an unknown shell."""
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for the shell {shell!r}")
    # Bash's own script starts another bash to check its version.
    return ShellComplete.source(kind(command, {}, "tieredstore", VARIABLE))
