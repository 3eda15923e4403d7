"""What is explored: succession, deletion, expiry and collection of garbage, each as small as it
can be while the promises still have something to say.

Bytes of the first writer are small letters, those of its successors capitals. The first writer has
begun, and written, before the others come; then every order is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from tieredstore.errors import TieredStoreError
from tieredstore.testing.explorer.programs import Setting, Writer, reader, writer
from tieredstore.testing.explorer.search import Scenario

GRACE_MS: Final = 120_000
Script: TypeAlias = Callable[[Writer], None]
NOTHING_DELETED: Final = "/[.]writer/[0-9]+$|/COMMIT_LOG/"


def late_whole(setting: Setting, faults: int = 0) -> Scenario:
    """Let the whole of a sealed segment come after its topic was deleted and made again."""
    first = _first(Writer.keep, before=_all(_append(b"aa", b"bb"), Writer.seal))
    second = _succeed(_all(Writer.delete, _append(b"CC")))
    return _make({"zombie": first, "successor": second}, setting, faults)


def late_run(setting: Setting, faults: int = 0) -> Scenario:
    """Let a merged run come after its topic was made again, with the same boundaries."""
    first = _first(Writer.keep, before=_append(b"aa", b"bb"))
    second = _succeed(_all(Writer.delete, _append(b"CC", b"DD")))
    return _make({"zombie": first, "successor": second}, setting, faults)


def stale_sweep(setting: Setting, faults: int = 0) -> Scenario:
    """Let a sweep of the same process use a listing from before its topic was deleted and made
    again."""

    def run(tier: Writer) -> None:
        tier.beside(partial(Writer.keep, sweep=True))
        tier.delete()
        tier.sleep(0)  # the sweep may go on here
        tier.append(b"AA")

    before = _all(_append(b"aa", b"bb"), Writer.keep, _sleep)
    return _make({"writer": _first(run, before=before)}, setting, faults)


def late_delete(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer that lost its right delete a topic that its successor writes."""
    parties = {"zombie": _first(Writer.delete), "successor": _succeed(_append(b"BB"))}
    return _make(parties, setting, faults)


def paused_write(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer stand still inside a write while others go on."""
    parties = {"zombie": _first(_append(b"bb")), "successor": _succeed(_append(b"CC"))}
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def shared_look(setting: Setting, faults: int = 0) -> Scenario:
    """Let two queues of one writer wait for a look at the epoch while a successor goes on."""

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
    """Let a writer that lost its right seal the segment that its successor writes."""
    parties = {"zombie": _first(Writer.seal), "successor": _succeed(_append(b"BB", b"CC"))}
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def one_writer(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer merge and collect, and a reader look."""
    script = _all(_append(b"bb"), Writer.keep, _append(b"cc"), _sleep, Writer.keep)
    parties = {"writer": _first(script)}
    return _make(parties, setting, faults, lasting=None, is_read=True)


def alone(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer whom nobody succeeds write, merge, delete and make again, and a reader look."""
    script = _all(_append(b"bb"), Writer.keep, Writer.delete, _append(b"AA", b"BB"), Writer.keep)
    return _make({"writer": _first(script)}, setting, faults, is_read=True)


def expiry(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer expire the first segment, a successor go on, and a reader look."""
    before = _all(_append(b"aa"), Writer.roll, _append(b"bb"))
    parties = {"first": _first(Writer.expire, before=before), "second": _succeed(_append(b"CC"))}
    return _make(parties, setting, faults, is_read=True)


def sent_anew(setting: Setting, faults: int = 2) -> Scenario:
    """Let a writer whose writes get no answer send more, or less, in their place."""

    def run(tier: Writer) -> None:
        tier.append(b"bb", again=[b"bbC", b"bb"])
        tier.append(b"ee")

    once = replace(setting, settings={**setting.settings, "max_tries": 1})
    return _make({"writer": _first(run)}, once, faults)


def made_again(setting: Setting, faults: int = 1) -> Scenario:
    """Let a successor delete a topic and make it again while its predecessor writes, and a reader
    look."""
    parties = {
        "first": _first(_append(b"bb")),
        "second": _succeed(_all(Writer.delete, _append(b"CC"))),
    }
    return _make(parties, setting, faults, is_read=True)


def collection(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer merge and collect while its successor does."""
    first = _first(_all(_sleep, Writer.keep), before=_all(_append(b"aa", b"bb"), Writer.keep))
    second = _succeed(_all(_append(b"CC"), Writer.keep))
    return _make({"first": first, "second": second}, setting, faults, lasting=None)


def collected_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor merge and collect what it inherits while a reader looks."""
    parties = {
        "first": _first(lambda _: None, before=_append(b"aa", b"bb")),
        "second": _succeed(_all(Writer.keep, _sleep, Writer.keep)),
    }
    return _make(parties, setting, faults, lasting=None, is_read=True)


def sealed_collected(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer collect the run that a sealed segment was, while a successor begins."""
    before = _all(_append(b"aa", b"bb"), Writer.keep, Writer.seal, Writer.keep, _sleep)
    parties = {"first": _first(Writer.keep, before=before), "second": _succeed(_append(b"CC"))}
    return _make(parties, setting, faults, lasting=None)


def merging_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer merge while it writes, and a successor go on."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.keep)
        tier.append(b"cc")

    parties = {
        "first": _first(first, before=_append(b"aa", b"bb")),
        "second": _succeed(_append(b"CC")),
    }
    return _make(parties, setting, faults)


def deleting_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer merge while it deletes, makes again and writes."""

    def first(tier: Writer) -> None:
        tier.beside(Writer.keep)
        tier.sleep(0)
        tier.delete()
        tier.sleep(0)
        tier.append(b"AA")
        tier.append(b"BB")

    return _make({"first": _first(first, before=_append(b"aa", b"bb"))}, setting, faults)


def swept(setting: Setting, faults: int = 0) -> Scenario:
    """Let a merged run of the first writer be late while the second one deletes, the third
    sweeps and a reader looks."""
    deleted = "second deleted"
    parties = {
        "first": _first(Writer.keep, before=_append(b"aa", b"bb")),
        "second": _succeed(_all(Writer.delete, lambda tier: tier.reach(deleted))),
        "third": _succeed(partial(Writer.keep, sweep=True), after=deleted),
    }
    return _make(parties, setting, faults, is_read=True, read_after="third began")


def succession(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers write, each from when the one before has the writer epoch. What they write
    has different lengths, so that a late one would cut another's in two."""
    parties = {
        "first": _first(_append(b"bbb")),
        "second": _succeed(_append(b"C")),
        "third": _succeed(_append(b"EE"), after="second began"),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def third_life(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers delete what there is, and make it again."""
    anew = Writer.delete
    parties = {
        "first": _first(_all(anew, _append(b"bb"))),
        "second": _succeed(_all(anew, _append(b"CC"))),
        "third": _succeed(_all(anew, _append(b"EE")), after="second began"),
    }
    return _make(parties, setting, faults)


def clean_stop(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer stop as it should, and a successor go by what it left, or take over before."""
    parties = {
        "first": _first(_all(_append(b"bb"), Writer.stop)),
        "second": _succeed(_append(b"CC")),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def stop_unanswered(setting: Setting, faults: int = 2) -> Scenario:
    """Let a writer stop behind a write, and its successor begin as soon as that is done: requests
    of the first may be on their way yet."""

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
    """Let a writer stop while it writes, and a successor go by what it left."""

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
    """Let a writer stop while it merges and collects, and a successor go by what it left."""

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
    """Let a writer stop while it deletes, and a successor go by what it left."""

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
    """Let a writer look at a segment while it deletes it, then stop, and a successor go by what it
    left."""

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
    """Let an epoch that writes nothing come between one that stops and its heir, which lists."""
    parties = {
        "first": _first(_all(_append(b"bb"), Writer.stop)),
        "second": Writer.claim,
        "third": _succeed(_append(b"EE"), after="second began"),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def stop_and_go_on(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer go by what the one before it left while another one takes over."""
    parties = {
        "first": _first(_all(_append(b"bb"), Writer.stop)),
        "second": _succeed(_append(b"C"), after="first stopped"),
        "third": _succeed(_append(b"EE"), after="second began"),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def stopped_twice(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers stop one after the other, and a reader look."""
    parties = {
        "first": _first(_all(_append(b"bb"), Writer.stop)),
        "second": _succeed(_all(Writer.keep, Writer.stop), after="first stopped"),
        "third": _succeed(_append(b"EE"), after="second stopped"),
    }
    return _make(parties, setting, faults, is_read=True, read_after="second began")


def paired_write(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer stand still in a write of messages and their units while others go on. What
    they write has other lengths."""
    parties = {
        "zombie": _first(_pairs((b"bb", b"b")), before=_pairs((b"aa", b"a"))),
        "successor": _succeed(_pairs((b"C", b"CC"), (b"DD", b"D"))),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def paired_alone(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer merge and collect what it wrote with its units, and a reader look."""
    script = _all(_pairs((b"bb", b"b")), Writer.keep, _sleep, Writer.keep, _pairs((b"cc", b"c")))
    parties = {"writer": _first(script, before=_pairs((b"aa", b"a")))}
    return _make(parties, setting, faults, lasting=None, is_read=True)


def paired_units_left(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer expire a commit log segment whose units are needed, a successor go on, and a
    reader look."""
    before = _all(_pairs((b"aa", b"a")), Writer.roll, _pairs((b"bb", b"b")))
    parties = {
        "first": _first(Writer.expire, before=before),
        "second": _succeed(_pairs((b"CC", b"C"))),
    }
    return _make(parties, setting, faults, lasting=None, is_read=True)


def paired_collected_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor merge and collect the units that it inherits while a reader looks."""
    parties = {
        "first": _first(lambda _: None, before=_pairs((b"aa", b"a"), (b"bb", b"b"))),
        "second": _succeed(_all(Writer.keep, _sleep, Writer.keep)),
    }
    return _make(parties, setting, faults, lasting=None, is_read=True)


def paired_made_again(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor delete both files of a queue and make them again while its predecessor
    writes, and a reader look."""
    parties = {
        "first": _first(_pairs((b"bb", b"b")), before=_pairs((b"aa", b"a"))),
        "second": _succeed(_all(Writer.delete_pair, _pairs((b"CC", b"C")))),
    }
    return _make(parties, setting, faults, is_read=True)


def paired_sent_anew(setting: Setting, faults: int = 2) -> Scenario:
    """Let a writer whose writes get no answer send each file's part by itself, messages in more or
    fewer bytes, and go on."""

    def run(tier: Writer) -> None:
        tier.append_pair(b"bb", b"b", again=[b"bbC", b"bb"])
        tier.append_pair(b"ee", b"e")

    once = replace(setting, settings={**setting.settings, "max_tries": 1})
    return _make({"writer": _first(run, before=_pairs((b"aa", b"a")))}, once, faults)


def paired_succession(setting: Setting, faults: int = 0) -> Scenario:
    """Let three writers write both files, each from when the one before has the writer epoch."""
    parties = {
        "first": _first(_pairs((b"bbb", b"b")), before=_pairs((b"aa", b"a"))),
        "second": _succeed(_pairs((b"C", b"CC"))),
        "third": _succeed(_pairs((b"EE", b"E")), after="second began"),
    }
    return _make(parties, setting, faults, lasting=NOTHING_DELETED)


def paired_stop(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer stop behind a write with units, and a successor go by what it left, or take over
    before, merge, collect and go on."""
    script = _all(Writer.keep, _sleep, Writer.keep, _pairs((b"CC", b"C")))
    parties = {
        "first": _first(_all(_pairs((b"bb", b"b")), Writer.stop), before=_pairs((b"aa", b"a"))),
        "second": _succeed(script),
    }
    return _make(parties, setting, faults, lasting=None)


def paired_stop_while_keeping(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer stop while it merges messages and units and collects what carried both, and a
    successor go by what it left."""

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
    """Let a writer stand still in a group object of two queues while others go on. What they write
    has other lengths."""
    parties = {
        "zombie": _first(_group(b"bb", b"b"), before=_group(b"aa", b"a")),
        "successor": _succeed(_all(_group(b"C", b"CC"), _group(b"DD", b"D"))),
    }
    return _make(parties, _grouping(setting), faults, lasting=NOTHING_DELETED)


def grouped_sent_anew(setting: Setting, faults: int = 2) -> Scenario:
    """Let a writer whose group objects get no answer go on, by groups and by writes of its own."""

    def run(tier: Writer) -> None:
        tier.append_gathered(T=(b"bb", b"b"))
        tier.append_gathered(T=(b"cc", b"c"))
        tier.append(b"d")

    once = _grouping(setting, max_tries=1)
    return _make({"writer": _first(run, before=_group(b"aa", b"a"))}, once, faults, is_read=True)


def grouped_alone(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer sort what it wrote in groups by queue, then move it to the queues' folders, and
    collect, and a reader look."""
    script = _all(Writer.keep, _sleep, Writer.keep, _only(b"bb", b"b"))
    parties = {"writer": _first(script, before=_only(b"aa", b"a"))}
    return _make(parties, _grouping(setting), faults, lasting=None, is_read=True)


def grouped_moved(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer move what it wrote in groups to the queues' folders at once, and a successor do
    so, too, and a reader look."""
    now = _grouping(setting, split_bytes=1)
    parties = {
        "first": _first(_all(Writer.keep, _sleep, Writer.keep), before=_only(b"aa", b"a")),
        "second": _succeed(_all(Writer.keep, _only(b"CC", b"C"))),
    }
    return _make(parties, now, faults, lasting=None)


def grouped_collected_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor sort and collect the groups that it inherits while a reader looks."""
    parties = {
        "first": _first(lambda _: None, before=_only(b"aa", b"a")),
        "second": _succeed(_all(Writer.keep, _sleep, Writer.keep)),
    }
    return _make(parties, _grouping(setting), faults, lasting=None, is_read=True)


def grouped_made_again(setting: Setting, faults: int = 0) -> Scenario:
    """Let a successor delete both files of a queue and make them again while its predecessor
    sorts what is in groups, and a reader look."""
    parties = {
        "first": _first(Writer.keep, before=_only(b"aa", b"a")),
        "second": _succeed(_all(Writer.delete_pair, _only(b"CC", b"C"))),
    }
    return _make(parties, _grouping(setting), faults, is_read=True)


def grouped_written_beside(setting: Setting, faults: int = 0) -> Scenario:
    """Let a writer sort and collect groups while it writes more of them, and a successor go on."""

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
    """Let three writers write groups, each from when the one before has the writer epoch."""
    parties = {
        "first": _first(_group(b"bbb", b"b"), before=_group(b"aa", b"a")),
        "second": _succeed(_group(b"C", b"CC")),
        "third": _succeed(_group(b"EE", b"E"), after="second began"),
    }
    return _make(parties, _grouping(setting), faults, lasting=NOTHING_DELETED)


def grouped_stop(setting: Setting, faults: int = 1) -> Scenario:
    """Let a writer stop behind a group, and a successor go by what it left, or take over before,
    sort, collect and go on."""
    script = _all(Writer.keep, _sleep, Writer.keep, _only(b"CC", b"C"))
    parties = {
        "first": _first(_all(_only(b"bb", b"b"), Writer.stop), before=_only(b"aa", b"a")),
        "second": _succeed(script),
    }
    return _make(parties, _grouping(setting), faults, lasting=None)


def _group(text: bytes, units: bytes) -> Script:
    """Messages and units of two queues, in one object."""
    return lambda tier: tier.append_gathered(T=(text, units), U=(text[:1], units[:1]))


def _only(text: bytes, units: bytes) -> Script:
    """Messages and units of one queue, in a group object."""
    return lambda tier: tier.append_gathered(T=(text, units))


def _grouping(setting: Setting, **settings: object) -> Setting:
    """With group objects, that are sorted whenever there is maintenance."""
    grouping = {"group_bytes": 1_000, "regroup_interval_ms": 0, **settings}
    return replace(setting, settings={**setting.settings, **grouping})


def _pairs(*pairs: tuple[bytes, bytes]) -> Script:
    """Messages, and their units."""

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
    """`before` (a write, unless given) happens before others come."""
    return _all(Writer.begin, before or _append(b"aa"), Writer.ready, script)


def _succeed(script: Script, after: str = "") -> Script:
    def run(tier: Writer) -> None:
        if after:
            tier.wait_for(after)
        tier.begin()
        script(tier)

    return run
