"""Small scenarios of succession, deletion, expiry and garbage collection.

The first writer writes small letters, its successors write capitals. Its first write comes before
all other processes begin. From then on, the search tries all orders of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from tests.kit.explorer.programs import Setting, Writer, reader, writer
from tests.kit.explorer.search import Scenario
from tieredstore.errors import TieredStoreError

GRACE_MS: Final = 120_000
Script: TypeAlias = Callable[[Writer], None]
NOTHING_DELETED: Final = "/[.]writer/[0-9]+$|/COMMIT_LOG/"


def late_whole(setting: Setting, faults: int = 0) -> Scenario:
    """Delay the creation of a sealed segment's object until the topic was deleted and recreated."""
    first = _first(Writer.keep, before=_all(_append(b"aa", b"bb"), Writer.seal))
    second = _succeed(_all(Writer.delete, _append(b"CC")))
    return _make({"zombie": first, "successor": second}, setting, faults)


def late_run(setting: Setting, faults: int = 0) -> Scenario:
    """Delay the creation of a merged object until the topic was deleted and recreated with the same
    segment boundaries."""
    first = _first(Writer.keep, before=_append(b"aa", b"bb"))
    second = _succeed(_all(Writer.delete, _append(b"CC", b"DD")))
    return _make({"zombie": first, "successor": second}, setting, faults)


def stale_sweep(setting: Setting, faults: int = 0) -> Scenario:
    """Sweep with a listing from before a topic was deleted and recreated."""

    def run(tier: Writer) -> None:
        tier.beside(partial(Writer.keep, sweep=True))
        tier.delete()
        tier.sleep(0)  # the sweep may continue here
        tier.append(b"AA")

    before = _all(_append(b"aa", b"bb"), Writer.keep, _sleep)
    return _make({"writer": _first(run, before=before)}, setting, faults)


def late_delete(setting: Setting, faults: int = 0) -> Scenario:
    """Let a fenced writer delete a topic to which its successor writes."""
    parties = {"zombie": _first(Writer.delete), "successor": _succeed(_append(b"BB"))}
    return _make(parties, setting, faults)


def paused_write(setting: Setting, faults: int = 0) -> Scenario:
    """Pause a write while a successor writes."""
    parties = {"zombie": _first(_append(b"bb")), "successor": _succeed(_append(b"CC"))}
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def shared_look(setting: Setting, faults: int = 0) -> Scenario:
    """Let two queues of a writer share a fence check while a successor continues."""

    def first(tier: Writer) -> None:
        tier.beside(partial(Writer.append, text=b"bb", topic="U"))
        tier.append(b"aa")

    def second(tier: Writer) -> None:
        tier.append(b"AA")
        tier.append(b"BB", "U")

    parties = {
        "zombie": _first(first, before=lambda _: None),
        "successor": _succeed(second),
    }
    return _make(parties, setting, faults)


def late_seal(setting: Setting, faults: int = 0) -> Scenario:
    """Let a fenced writer seal the segment to which its successor writes."""
    parties = {"zombie": _first(Writer.seal), "successor": _succeed(_append(b"BB", b"CC"))}
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def one_writer(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer merge and collect garbage while a reader reads."""
    script = _all(_append(b"bb"), Writer.keep, _append(b"cc"), _sleep, Writer.keep)
    parties = {"writer": _first(script)}
    return _make(parties, setting, faults, lasting=None, is_read=True)


def alone(setting: Setting, faults: int = 1) -> Scenario:
    """Let a single writer write, merge, delete and recreate a topic while a reader reads."""
    script = _all(_append(b"bb"), Writer.keep, Writer.delete, _append(b"AA", b"BB"), Writer.keep)
    return _make({"writer": _first(script)}, setting, faults, is_read=True)


def expiry(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer expire the first segment, a successor continue, and a reader read."""
    before = _all(_append(b"aa"), Writer.roll, _append(b"bb"))
    parties = {"first": _first(Writer.expire, before=before), "second": _succeed(_append(b"CC"))}
    return _make(parties, setting, faults, is_read=True)


def sent_anew(setting: Setting, faults: int = 2) -> Scenario:
    """Lose the replies to a writer's writes, so that it sends more or fewer bytes instead."""

    def run(tier: Writer) -> None:
        tier.append(b"bb", again=[b"bbC", b"bb"])
        tier.append(b"ee")

    once = replace(setting, settings={**setting.settings, "max_tries": 1})
    return _make({"writer": _first(run)}, once, faults)


def made_again(setting: Setting, faults: int = 1) -> Scenario:
    """Let a successor delete and recreate a topic while its predecessor writes and a reader
    reads."""
    parties = {
        "first": _first(_append(b"bb")),
        "second": _succeed(_all(Writer.delete, _append(b"CC"))),
    }
    return _make(parties, setting, faults, is_read=True)


def collection(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer and its successor merge and collect garbage at the same time."""
    first = _first(_all(_sleep, Writer.keep), before=_all(_append(b"aa", b"bb"), Writer.keep))
    second = _succeed(_all(_append(b"CC"), Writer.keep))
    return _make({"first": first, "second": second}, setting, faults, lasting=None)


def collected_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor merge inherited objects and delete garbage during a read."""
    parties = {
        "first": _first(lambda _: None, before=_append(b"aa", b"bb")),
        "second": _succeed(_all(Writer.keep, _sleep, Writer.keep)),
    }
    return _make(parties, setting, faults, lasting=None, is_read=True)


def sealed_collected(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer delete unneeded objects of a sealed segment while a successor begins."""
    before = _all(_append(b"aa", b"bb"), Writer.keep, Writer.seal, Writer.keep, _sleep)
    parties = {"first": _first(Writer.keep, before=before), "second": _succeed(_append(b"CC"))}
    return _make(parties, setting, faults, lasting=None)


def merging_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer merge and write at the same time, and a successor continue."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.keep)
        tier.append(b"cc")

    parties = {
        "first": _first(first, before=_append(b"aa", b"bb")),
        "second": _succeed(_append(b"CC")),
    }
    return _make(parties, setting, faults)


def deleting_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer merge while it deletes a topic, recreates it and writes."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.keep)
        tier.sleep(0)
        tier.delete()
        tier.sleep(0)
        tier.append(b"AA")
        tier.append(b"BB")

    return _make({"first": _first(first, before=_append(b"aa", b"bb"))}, setting, faults)


def swept(setting: Setting, faults: int = 0) -> Scenario:
    """Delay the first writer's creation of a merged object. Meanwhile, a second writer deletes, a
    third sweeps, and a reader reads."""
    deleted = "second deleted"
    parties = {
        "first": _first(Writer.keep, before=_append(b"aa", b"bb")),
        "second": _succeed(_all(Writer.delete, lambda tier: tier.reach(deleted))),
        "third": _succeed(partial(Writer.keep, sweep=True), after=deleted),
    }
    return _make(parties, setting, faults, is_read=True, read_after="third began")


def succession(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers succeed one another. Their writes have different lengths, so that a late
    write would split another write."""
    parties = {
        "first": _first(_append(b"bbb")),
        "second": _succeed(_append(b"C")),
        "third": _succeed(_append(b"EE"), after="second began"),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def third_life(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers in turn delete and recreate everything."""
    anew = Writer.delete
    parties = {
        "first": _first(_all(anew, _append(b"bb"))),
        "second": _succeed(_all(anew, _append(b"CC"))),
        "third": _succeed(_all(anew, _append(b"EE")), after="second began"),
    }
    return _make(parties, setting, faults)


def clean_stop(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer stop cleanly. Its successor starts from the shutdown snapshot, or takes over
    before the stop."""
    parties = {
        "first": _first(_all(_append(b"bb"), Writer.stop)),
        "second": _succeed(_append(b"CC")),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def stop_unanswered(setting: Setting, faults: int = 2) -> Scenario:
    """Let a writer stop while its last requests may still be in flight. A successor begins at
    once."""

    def first(tier: Writer) -> None:
        with suppress(TieredStoreError):
            tier.append(b"bb", again=[b"bbC", b"bb"])
        tier.stop()

    parties = {
        "first": _first(first),
        "second": _succeed(_append(b"CC"), after="first stopped"),
    }
    once = replace(setting, settings={**setting.settings, "max_tries": 1})
    return _make(parties, once, faults, lasting=NOTHING_DELETED)


def stop_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer stop during a write. Its successor starts from the shutdown snapshot."""

    def first(tier: Writer) -> None:
        tier.beside(_append(b"cc"))
        tier.sleep(0)
        tier.stop()

    parties = {
        "first": _first(first, before=_append(b"aa", b"bb")),
        "second": _succeed(_append(b"DD"), after="first stopped"),
    }
    return _make(parties, setting, faults)


def stop_while_keeping(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer stop while it merges and deletes garbage. Its successor starts from the shutdown
    snapshot."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.keep)
        tier.sleep(0)
        tier.stop()

    now = replace(setting, settings={**setting.settings, "grace_ms": 0})
    parties = {
        "first": _first(first, before=_append(b"aa", b"bb")),
        "second": _succeed(_append(b"DD"), after="first stopped"),
    }
    return _make(parties, now, faults)


def stop_while_deleting(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer stop during a deletion. Its successor starts from the shutdown snapshot."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.delete)
        tier.sleep(0)
        tier.stop()

    parties = {
        "first": _first(first, before=_append(b"aa", b"bb")),
        "second": _succeed(_append(b"DD"), after="first stopped"),
    }
    return _make(parties, setting, faults)


def looked_at_while_deleted(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer list a segment during the segment's deletion, and then stop. Its successor
    starts from the shutdown snapshot."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.look)
        tier.delete()
        tier.stop()

    parties = {
        "first": _first(first),
        "second": _succeed(_append(b"DD"), after="first stopped"),
    }
    return _make(parties, setting, faults)


def stop_and_claim(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer stop, a second one acquire the epoch without writing, and a third one begin with
    a listing."""
    parties = {
        "first": _first(_all(_append(b"bb"), Writer.stop)),
        "second": Writer.claim,
        "third": _succeed(_append(b"EE"), after="second began"),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def stop_and_go_on(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer start from a shutdown snapshot while another writer takes over."""
    parties = {
        "first": _first(_all(_append(b"bb"), Writer.stop)),
        "second": _succeed(_append(b"C"), after="first stopped"),
        "third": _succeed(_append(b"EE"), after="second began"),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def stopped_twice(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers stop in turn, and a reader read."""
    parties = {
        "first": _first(_all(_append(b"bb"), Writer.stop)),
        "second": _succeed(_all(Writer.keep, Writer.stop), after="first stopped"),
        "third": _succeed(_append(b"EE"), after="second stopped"),
    }
    return _make(parties, setting, faults, is_read=True, read_after="second began")


def paired_write(setting: Setting, faults: int = 0) -> Scenario:
    """Pause a write of messages and units while a successor writes. The writes have different
    lengths."""
    parties = {
        "zombie": _first(_pairs((b"bb", b"b")), before=_pairs((b"aa", b"a"))),
        "successor": _succeed(_pairs((b"C", b"CC"), (b"DD", b"D"))),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def paired_alone(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer merge messages and units and delete garbage while a reader reads."""
    script = _all(_pairs((b"bb", b"b")), Writer.keep, _sleep, Writer.keep, _pairs((b"cc", b"c")))
    parties = {"writer": _first(script, before=_pairs((b"aa", b"a")))}
    return _make(parties, setting, faults, lasting=None, is_read=True)


def paired_units_left(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer expire a commit log segment whose units are still needed. A successor continues,
    and a reader reads."""
    before = _all(_pairs((b"aa", b"a")), Writer.roll, _pairs((b"bb", b"b")))
    parties = {
        "first": _first(Writer.expire, before=before),
        "second": _succeed(_pairs((b"CC", b"C"))),
    }
    return _make(parties, setting, faults, lasting=None, is_read=True)


def paired_collected_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor merge inherited units and delete garbage during a read."""
    parties = {
        "first": _first(lambda _: None, before=_pairs((b"aa", b"a"), (b"bb", b"b"))),
        "second": _succeed(_all(Writer.keep, _sleep, Writer.keep)),
    }
    return _make(parties, setting, faults, lasting=None, is_read=True)


def paired_made_again(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor delete and recreate both files of a queue while its predecessor writes and a
    reader reads."""
    parties = {
        "first": _first(_pairs((b"bb", b"b")), before=_pairs((b"aa", b"a"))),
        "second": _succeed(_all(Writer.delete_pair, _pairs((b"CC", b"C")))),
    }
    return _make(parties, setting, faults, is_read=True)


def paired_sent_anew(setting: Setting, faults: int = 2) -> Scenario:
    """Lose the replies to a writer's writes of messages and units. It then writes each file
    separately, with more or fewer bytes, and continues."""

    def run(tier: Writer) -> None:
        tier.append_pair(b"bb", b"b", again=[b"bbC", b"bb"])
        tier.append_pair(b"ee", b"e")

    once = replace(setting, settings={**setting.settings, "max_tries": 1})
    return _make({"writer": _first(run, before=_pairs((b"aa", b"a")))}, once, faults)


def paired_succession(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers of both files succeed one another."""
    parties = {
        "first": _first(_pairs((b"bbb", b"b")), before=_pairs((b"aa", b"a"))),
        "second": _succeed(_pairs((b"C", b"CC"))),
        "third": _succeed(_pairs((b"EE", b"E")), after="second began"),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def paired_stop(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer stop after a write with units. Its successor starts from the shutdown snapshot,
    or takes over before the stop. It merges, deletes garbage and continues."""
    script = _all(Writer.keep, _sleep, Writer.keep, _pairs((b"CC", b"C")))
    parties = {
        "first": _first(_all(_pairs((b"bb", b"b")), Writer.stop), before=_pairs((b"aa", b"a"))),
        "second": _succeed(script),
    }
    return _make(parties, setting, faults, lasting=None)


def paired_stop_while_keeping(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer stop while it merges messages and units and deletes garbage. Its successor
    starts from the shutdown snapshot."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.keep)
        tier.sleep(0)
        tier.stop()

    now = replace(setting, settings={**setting.settings, "grace_ms": 0})
    parties = {
        "first": _first(first, before=_pairs((b"aa", b"a"), (b"bb", b"b"))),
        "second": _succeed(_all(Writer.keep, _pairs((b"DD", b"D"))), after="first stopped"),
    }
    return _make(parties, now, faults, lasting=None)


def grouped_write(setting: Setting, faults: int = 0) -> Scenario:
    """Pause the write of a group object of two queues while a successor writes. The writes have
    different lengths."""
    parties = {
        "zombie": _first(_group(b"bb", b"b"), before=_group(b"aa", b"a")),
        "successor": _succeed(_all(_group(b"C", b"CC"), _group(b"DD", b"D"))),
    }
    return _make(parties, _grouping(setting), faults, lasting=NOTHING_DELETED)


def grouped_sent_anew(setting: Setting, faults: int = 2) -> Scenario:
    """Lose the replies to a writer's writes of group objects. It continues with group objects and
    single writes."""

    def run(tier: Writer) -> None:
        tier.append_gathered(T=(b"bb", b"b"))
        tier.append_gathered(T=(b"cc", b"c"))
        tier.append(b"d")

    once = _grouping(setting, max_tries=1)
    return _make({"writer": _first(run, before=_group(b"aa", b"a"))}, once, faults, is_read=True)


def grouped_alone(setting: Setting, faults: int = 0) -> Scenario:
    """Let a single writer sort its groups, move the bytes to the queues' folders and delete old
    groups during a read."""
    script = _all(Writer.keep, _sleep, Writer.keep, _only(b"bb", b"b"))
    parties = {"writer": _first(script, before=_only(b"aa", b"a"))}
    return _make(parties, _grouping(setting), faults, lasting=None, is_read=True)


def grouped_moved(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer and its successor move grouped bytes to the queues' folders at the same time,
    during a read."""
    now = _grouping(setting, split_bytes=1)
    parties = {
        "first": _first(_all(Writer.keep, _sleep, Writer.keep), before=_only(b"aa", b"a")),
        "second": _succeed(_all(Writer.keep, _only(b"CC", b"C"))),
    }
    return _make(parties, now, faults, lasting=None)


def grouped_collected_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor sort inherited groups and delete old ones during a read."""
    parties = {
        "first": _first(lambda _: None, before=_only(b"aa", b"a")),
        "second": _succeed(_all(Writer.keep, _sleep, Writer.keep)),
    }
    return _make(parties, _grouping(setting), faults, lasting=None, is_read=True)


def grouped_made_again(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor delete and recreate both files of a queue while its predecessor sorts grouped
    bytes and a reader reads."""
    parties = {
        "first": _first(Writer.keep, before=_only(b"aa", b"a")),
        "second": _succeed(_all(Writer.delete_pair, _only(b"CC", b"C"))),
    }
    return _make(parties, _grouping(setting), faults, is_read=True)


def grouped_written_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer sort and delete groups while it writes another one. A successor continues."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.keep)
        tier.append_gathered(T=(b"bb", b"b"))

    now = _grouping(setting, grace_ms=0)
    parties = {
        "first": _first(first, before=_only(b"aa", b"a")),
        "second": _succeed(_only(b"CC", b"C")),
    }
    return _make(parties, now, faults, lasting=None)


def grouped_succession(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers of groups succeed one another."""
    parties = {
        "first": _first(_group(b"bbb", b"b"), before=_group(b"aa", b"a")),
        "second": _succeed(_group(b"C", b"CC")),
        "third": _succeed(_group(b"EE", b"E"), after="second began"),
    }
    return _make(parties, _grouping(setting), faults, lasting=NOTHING_DELETED)


def grouped_stop(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer stop after it wrote a group object. Its successor starts from the shutdown
    snapshot, or takes over before the stop. It sorts and deletes groups and continues."""
    script = _all(Writer.keep, _sleep, Writer.keep, _only(b"CC", b"C"))
    parties = {
        "first": _first(_all(_only(b"bb", b"b"), Writer.stop), before=_only(b"aa", b"a")),
        "second": _succeed(script),
    }
    return _make(parties, _grouping(setting), faults, lasting=None)


def _group(text: bytes, units: bytes) -> Script:
    """Write messages and units of two queues in one group object."""
    return lambda tier: tier.append_gathered(T=(text, units), U=(text[:1], units[:1]))


def _only(text: bytes, units: bytes) -> Script:
    """Write messages and units of one queue in a group object."""
    return lambda tier: tier.append_gathered(T=(text, units))


def _grouping(setting: Setting, **settings: object) -> Setting:
    """Return settings that enable group objects. Every maintenance run sorts them."""
    grouping = {"group_bytes": 1_000, "regroup_interval_ms": 0, **settings}
    return replace(setting, settings={**setting.settings, **grouping})


def _pairs(*pairs: tuple[bytes, bytes]) -> Script:
    """Return messages with their units."""

    def run(tier: Writer) -> None:
        for text, units in pairs:
            tier.append_pair(text, units)

    return run


def _make(
    parties: Mapping[str, Script],
    setting: Setting,
    faults: int,
    *,
    lasting: str | None = Scenario.lasting,
    is_read: bool = False,
    read_after: str = "",
) -> Scenario:
    programs = {name: writer(script, setting) for name, script in parties.items()}
    if is_read:
        programs["reader"] = reader(setting, read_after)
    return Scenario(programs, faults, setting.page_keys, lasting)


def _append(*texts: bytes) -> Script:
    def run(tier: Writer) -> None:
        for text in texts:
            tier.append(text)

    return run


def _all(*scripts: Script) -> Script:
    def run(tier: Writer) -> None:
        for script in scripts:
            script(tier)

    return run


def _sleep(tier: Writer) -> None:
    tier.sleep(GRACE_MS)


def _first(script: Script, *, before: Script | None = None) -> Script:
    """Return the script of the first writer. It runs `before` (by default a write) before all other
    processes begin, and then `script`."""
    return _all(Writer.begin, before or _append(b"aa"), Writer.ready, script)


def _succeed(script: Script, after: str = "") -> Script:
    def run(tier: Writer) -> None:
        if after:
            tier.wait_for(after)
        tier.begin()
        script(tier)

    return run
