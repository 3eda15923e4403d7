"""A writer that is killed before or after any of its requests loses no acknowledged data."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.kit.fault_proxy.http import NOTHING, Forward, Reply, Request
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.killable.driver import Driver
from tests.kit.killable.object_store import (
    BATCHES,
    DOOMED,
    SEALED,
    content,
    open_tier,
)
from tests.kit.object_store.fixtures import new_bucket
from tests.kit.object_store.servers import ObjectStore, Servers
from tieredstore.contracts.segment import SegmentId

if TYPE_CHECKING:
    from tieredstore.providers.s3.provider import S3Provider

OPTIONS = {"max_attempts": "1", "fast_reads": "false"}
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Failpoint:
    """Selects the requests of one kind. `empty`: True selects only puts of empty objects, False
    only other puts, None both."""

    operations: tuple[str, ...]
    key: str = ""
    empty: bool | None = None

    def __contains__(self, request: Request) -> bool:
        return (
            request.operation in self.operations
            and re.search(self.key, request.key) is not None
            and (self.empty is None or self.empty is not bool(request.body))
        )


FAILPOINTS = {
    "epoch": Failpoint(("PutObject",), r"/\.writer/"),
    "put": Failpoint(("PutObject",), r"/c\.\d+$", empty=False),
    "marker": Failpoint(("PutObject",), r"/c\.\d+$", empty=True),
    "merge": Failpoint(("PutObject",), r"/m\.[\d-]+$"),
    "whole": Failpoint(("PutObject",), r"/s$"),
    "create": Failpoint(("CreateMultipartUpload",)),
    "part": Failpoint(("UploadPart",)),
    "part-copy": Failpoint(("UploadPartCopy",)),
    "complete": Failpoint(("CompleteMultipartUpload",)),
    "delete": Failpoint(("DeleteObjects", "DeleteObject")),
}
ANY_CHANGE = Failpoint(tuple({o for point in FAILPOINTS.values() for o in point.operations}))


class Killer:
    """A fault that kills a process at its `number`-th request of one kind, before or after the
    server executes it. `count` is the number of such requests seen."""

    def __init__(
        self, point: Failpoint, number: int | None = None, *, applied: bool = False
    ) -> None:
        self._point = point
        self._number = number
        self._applied = applied
        self._lock = threading.Lock()
        self.pid = 0
        self.count = 0
        self.has_struck = False

    def aim(self, pid: int) -> None:
        self.pid = pid

    def __call__(self, request: Request, forward: Forward) -> Reply:
        if request not in self._point:
            return forward(request)
        with self._lock:
            self.count += 1
            struck = self.count == self._number
            self.has_struck |= struck
        if struck and not self._applied:
            os.kill(self.pid, signal.SIGKILL)
            return Reply(0, cut_at=NOTHING)
        reply = forward(request)
        if struck:
            os.kill(self.pid, signal.SIGKILL)
        return reply


@pytest.fixture(scope="module")
def runner() -> Iterator[Driver]:
    with closing(Driver("tests.kit.killable.object_store")) as runner:
        yield runner


def check_what_was_told(provider: S3Provider, done: Path) -> None:
    """Check the acknowledged data in another process, without the proxy."""
    told = [line.split() for line in done.read_text().splitlines()] if done.exists() else []
    sizes = {line[1]: int(line[2]) for line in told if line[0] == "size"}
    over = {tuple(line) for line in told if line[0] != "size"}
    sealed = {str(listing.id): listing.sealed for listing in provider.list()}
    for name in BATCHES:
        segment = provider.open(name)
        size = segment.size()
        if ("delete", str(name)) in over:
            assert size == 0, name
            continue
        if name == DOOMED and sizes.get(str(name)) == sum(BATCHES[name]):
            continue  # its deletion may have begun
        assert size in _possible_sizes(name, sizes.get(str(name), 0)), (name, size)
        assert bytes(segment.read(0, size)) == content(name)[:size], name
        if ("seal", str(name)) in over:
            assert sealed[str(name)], name


def _possible_sizes(id: SegmentId, told: int) -> set[int]:
    """Return the possible sizes of a segment: the acknowledged size, with or without the write that
    was under way at the crash."""
    ends = [0]
    for length in BATCHES[id]:
        ends.append(ends[-1] + length)
    at = ends.index(told)
    return set(ends[at : at + 2])


def check_the_end(provider: S3Provider, store: ObjectStore, prefix: str) -> None:
    """Check that the tier has all data, and no other data."""
    listings = {listing.id: listing for listing in provider.list()}
    assert set(listings) == set(BATCHES) - {DOOMED}
    for name, listing in listings.items():
        assert listing.size_bytes == sum(BATCHES[name])
        assert listing.sealed == (name in SEALED)
        assert bytes(provider.open(name).read(0, listing.size_bytes)) == content(name)
    names: dict[str, list[str]] = {}
    for key in store.keys(prefix):
        folder, _, last = key.rpartition("/")
        names.setdefault(folder, []).append(last[:2])
    sealed = [found for found in names.values() if "s" in found]
    # The marker of a former epoch is garbage, since the epoch manifest records the seal
    assert len(sealed) == len(SEALED)
    assert all(set(found) <= {"c.", "s"} for found in sealed)
    # A tombstone stays until the next epoch
    assert all(found == ["t"] for folder, found in names.items() if "Doomed" in folder)
    assert store.open_uploads() == 0


def test_an_uninterrupted_run_passes_every_failpoint(
    object_store: ObjectStore, proxy: FaultProxy, runner: Driver, tmp_path: Path
) -> None:
    killers = {name: Killer(point) for name, point in FAILPOINTS.items()}
    for killer in killers.values():
        proxy.inject(killer)
    url = object_store.through(proxy.endpoint).url(**OPTIONS)
    assert runner.run({"url": url, "done": tmp_path / "done"}) == 0
    with closing(open_tier(object_store.url())) as provider:
        check_what_was_told(provider, tmp_path / "done")
        check_the_end(provider, object_store, "tier")
    assert all(killer.count for killer in killers.values()), {
        n: k.count for n, k in killers.items()
    }


def kill(store: ObjectStore, runner: Driver, prefix: str, done: Path, killer: Killer) -> bool:
    """Run the writer until it ends or is killed. Return whether it was killed."""
    with FaultProxy(store.endpoint) as proxy:
        proxy.inject(killer)
        url = store.through(proxy.endpoint).url(prefix, **OPTIONS)
        status = runner.run({"url": url, "done": done}, killer.aim)
    assert status == (KILLED if killer.has_struck else 0), prefix
    return killer.has_struck


def kill_once_each(
    store: ObjectStore, runner: Driver, tmp_path: Path, name: str, number: int
) -> int:
    """Kill the writer at request number `number` of the kind `name`, before and after the request,
    each time in a new tier. A second run finishes the work. Return the number of kills."""
    kills = 0
    for applied in (False, True):
        prefix = f"{name}-{number}-{applied}"
        done = tmp_path / prefix
        killer = Killer(FAILPOINTS[name], number, applied=applied)
        kills += kill(store, runner, prefix, done, killer)
        with closing(open_tier(store.url(prefix))) as provider:
            check_what_was_told(provider, done)
            assert runner.run({"url": store.url(prefix, **OPTIONS), "done": done}) == 0, prefix
            check_the_end(provider, store, prefix)
    return kills


@pytest.mark.parametrize("name", FAILPOINTS)
def test_w04_killed_before_and_after_the_first_request_of_each_kind(
    versitygw: ObjectStore, runner: Driver, tmp_path: Path, name: str
) -> None:
    assert kill_once_each(versitygw, runner, tmp_path, name, 1) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILPOINTS)
def test_w04_killed_before_and_after_every_request(
    versitygw: ObjectStore, runner: Driver, tmp_path: Path, name: str
) -> None:
    number = 1
    while kill_once_each(versitygw, runner, tmp_path, name, number):
        number += 1
    assert number > 1


@pytest.mark.parametrize(
    ("server", "kills"),
    [
        ("moto", 5),
        ("versitygw", 10),
        pytest.param("moto", 10, marks=pytest.mark.slow),
        pytest.param("localstack", 10, marks=pytest.mark.slow),
        pytest.param("versitygw", 40, marks=pytest.mark.slow),
    ],
)
def test_w04_killed_again_and_again_it_still_ends(
    servers: Servers, runner: Driver, tmp_path: Path, server: str, kills: int
) -> None:
    """An upload is killed repeatedly, each time a few changes later, until a run finishes. Each run
    continues the work of the previous runs."""
    store = new_bucket(servers, server)
    random = Random(server)
    done_kills, tiers = 0, 0
    while done_kills < kills:
        prefix = f"tier-{tiers}"
        with closing(open_tier(store.url(prefix))) as provider:
            killed = True
            while killed:
                killer = Killer(ANY_CHANGE, random.randint(1, 12), applied=random.random() < 0.5)
                killed = kill(store, runner, prefix, tmp_path / prefix, killer)
                check_what_was_told(provider, tmp_path / prefix)
                done_kills += killed
            check_the_end(provider, store, prefix)
        tiers += 1
