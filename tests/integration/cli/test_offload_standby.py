"""`offload --follow --standby` runs beside a replica until it is ordered to take over."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import files_of, one_line, tieredstore
from tests.kit.followed import Steps, options, put, tiered_bodies
from tests.kit.local_stores import put_all, running, small_config
from tieredstore import jobs
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.jobs.offloading import following as following_module
from tieredstore.jobs.offloading import job as job_module
from tieredstore.jobs.offloading import standby as standby_module
from tieredstore.jobs.offloading.job import offload_store, run_offload
from tieredstore.jobs.offloading.standby import ORDER_FILE, PATIENCE_MS, TakeOverOrder
from tieredstore.jobs.offloading.watch import OffloadWatch
from tieredstore.jobs.options import OffloadOptions, RunOptions
from tieredstore.jobs.run import JobProgress
from tieredstore.jobs.start import start_run
from tieredstore.jobs.stopping import StopSignal
from tieredstore.message.encoding import Message
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider

ANSWER_S = 60
SMALL_INDEX = "tieredStoreIndexFileMaxHashSlotNum=40\ntieredStoreIndexFileMaxIndexNum=100\n"


class Site:
    """A master's store, which is partly offloaded, and a replica of the store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.master, self.replica = root / "store", root / "replica" / "store"
        self.state = root / "replica" / "state"
        self.order = self.state / ORDER_FILE
        self.stop = StopSignal()
        self.notes: list[str] = []
        self.conf = root / "small.conf"
        self.conf.write_text(SMALL_INDEX)

    def fill(self, store: Path, first: int, count: int) -> None:
        with running(small_config(store)) as opened:
            put(opened, first, count)

    def replicate(self) -> None:
        shutil.copytree(self.master, self.replica, dirs_exist_ok=True)

    def offload(self) -> None:
        done = offload_store(options(self.master, config=self.conf, upload_index=True))
        assert done.failed == []

    def options(self, **more: Any) -> OffloadOptions:
        return OffloadOptions(
            f"file://{self.root / 'tier'}",
            self.replica,
            state=self.state,
            config=self.conf,
            broker="b",
            cluster="c",
            follow=True,
            standby=True,
            **more,
        )

    def run(self, *steps: Any, watch: OffloadWatch | None = None) -> Any:
        """Run a standby, and return its report. Each time the standby waits, the next function in
        `steps` is called instead."""

        def told(progress: JobProgress) -> None:
            self.notes.append(progress.note)

        options = self.options(stop=self.stop, watch=watch)
        how = RunOptions(progress=told)
        with start_run("offload", {}, how, has_journal=False) as run:
            return run_offload(run, options, clock=Steps([*steps, self.stop.set]))

    def give_order(self) -> None:
        self.order.touch()

    def bodies(self) -> list[str]:
        return tiered_bodies(self.root, "T")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.fill(made.master, 0, 10)
    made.replicate()
    return made


def numbered(count: int) -> list[str]:
    return [f"body {number}" for number in range(count)]


def test_a_standby_changes_nothing_until_it_is_told(site: Site) -> None:
    site.offload()
    site.fill(site.replica, 10, 5)
    before = files_of(site.root / "tier")
    report = site.run(lambda: None, lambda: None)
    assert (report["stopped"], report["messages"]) == (True, 0)
    assert files_of(site.root / "tier") == before
    assert list(site.state.iterdir()) == []
    assert site.notes == [f"standby: takes over once there is a file {site.order}"]


def test_a_standby_that_is_told_goes_on_where_the_tier_ends(site: Site) -> None:
    site.offload()
    site.fill(site.replica, 10, 5)
    report = site.run(site.give_order, lambda: None)
    assert (report["messages"], report["failed"]) == (5, [])
    assert site.bodies() == numbered(15)
    verified = tieredstore("verify", "--tier", site.root / "tier", "--state", site.state)
    assert verified.code == 0, verified.out
    found = tieredstore(
        "query", "--tier", site.root / "tier", "--topic", "T", "--key", "k3",
        "--state", site.state, "--output", "ndjson",
    )  # fmt: skip
    assert [row["body"] for row in found.rows] == ["body 3"]


def test_a_standby_that_waits_is_well(site: Site) -> None:
    site.offload()
    site.fill(site.replica, 10, 5)
    watch = OffloadWatch()
    seen: list[tuple[str, str]] = []

    def look() -> None:
        seen.extend((service.name, service.state.value) for service in watch.list_services())

    site.run(look, site.give_order, look, watch=watch)
    assert seen == [("standby", "running"), ("offload", "running")]


def test_an_order_that_is_there_already_is_followed_at_once(site: Site) -> None:
    site.offload()
    site.fill(site.replica, 10, 1)
    site.state.mkdir(parents=True)
    site.give_order()
    assert site.run()["messages"] == 1


def test_a_standby_over_an_empty_tier_uploads_everything(site: Site) -> None:
    assert site.run(site.give_order, lambda: None)["messages"] == 10
    assert site.bodies() == numbered(10)


def test_a_replica_whose_log_ends_before_the_tier_s_is_refused_with_the_offset(
    site: Site,
) -> None:
    site.fill(site.master, 10, 5)
    site.offload()
    before = site.bodies()
    with pytest.raises(
        Corrupt, match=r"up to queue offset 15, the local store only up to 10"
    ) as caught:
        site.run(site.give_order)
    assert (caught.value.topic, caught.value.queue_id, caught.value.offset) == ("T", 0, 10)
    assert site.bodies() == before


def test_a_replica_whose_log_differs_from_the_tier_s_is_refused_with_the_offset(
    site: Site,
) -> None:
    site.fill(site.master, 10, 5)
    site.offload()
    site.fill(site.replica, 100, 10)  # other messages at the same offsets
    before = site.bodies()
    with pytest.raises(Corrupt, match="of queue offset 14 in the tier is not the one") as caught:
        site.run(site.give_order)
    assert caught.value.offset == 14
    assert site.bodies() == before


def test_a_replica_that_caught_up_takes_over_after_it_was_refused(site: Site) -> None:
    site.fill(site.master, 10, 5)
    site.offload()
    with pytest.raises(Corrupt):
        site.run(site.give_order)
    shutil.rmtree(site.replica)
    site.replicate()
    site.fill(site.replica, 15, 2)
    site.stop = StopSignal()
    assert site.run(lambda: None)["messages"] == 2
    assert site.bodies() == numbered(17)


def test_a_replica_without_a_queue_that_the_tier_has_is_refused(site: Site) -> None:
    with running(small_config(site.master)) as store:
        put_all(store, [Message.create("Other", b"x", queue_id=3)])
    site.offload()
    with pytest.raises(Corrupt, match=r"b/Other/3.*up to queue offset 1.*has no such queue"):
        site.run(site.give_order)


def test_a_replica_that_runs_gets_the_time_to_flush(site: Site) -> None:
    """A running replica gets time to flush. Only messages before its checkpoint are read, and a
    Java broker's checkpoint lags up to a minute behind."""
    site.fill(site.master, 10, 5)
    site.offload()
    shutil.rmtree(site.replica)
    site.replicate()
    clock = Steps([])
    never = 2**31 - 1
    (site.replica / "checkpoint").unlink()  # it knows of no message
    quiet = {"flush_interval_commit_log_ms": never, "flush_interval_consume_queue_ms": never}
    with running(small_config(site.replica, **quiet), clock) as store:
        clock.steps = [lambda: None, store.flush, lambda: None, site.stop.set]
        site.state.mkdir(parents=True)
        site.give_order()
        with start_run("offload", {}, has_journal=False) as run:
            report = run_offload(run, site.options(stop=site.stop), clock=clock)
    assert report["failed"] == []
    assert site.order.stat().st_size > 0  # it was carried out


def test_a_replica_that_runs_and_never_catches_up_is_refused_after_some_minutes(
    site: Site,
) -> None:
    site.fill(site.master, 10, 5)
    site.offload()
    site.state.mkdir(parents=True)
    site.give_order()
    clock = Steps([])
    begin_ms = clock.monotonic_ms()
    with (
        running(small_config(site.replica)),
        pytest.raises(Corrupt, match="up to queue offset 15"),
        start_run("offload", {}, has_journal=False) as run,
    ):
        run_offload(run, site.options(stop=site.stop), clock=clock)
    assert PATIENCE_MS <= clock.monotonic_ms() - begin_ms <= PATIENCE_MS + 60_000


@pytest.mark.parametrize(
    "step",
    [
        "standby.find_former_metadata",
        "standby.run_rebuild_metadata",
        "following.await_coverage",
        "standby.TakeOverOrder.note_done",
        "job.OffloadWatch.begin",
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_take_over_that_is_cut_off_is_carried_out_by_the_next_start(
    site: Site, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    site.offload()
    site.fill(site.replica, 10, 5)
    with monkeypatch.context() as patched:
        place = f"tieredstore.jobs.offloading.{step}"
        module, *names = step.split(".")
        found: Any = {
            "standby": standby_module,
            "job": job_module,
            "following": following_module,
        }[module]
        for name in names:
            found = getattr(found, name)

        def cut_off(*arguments: Any, **more: Any) -> None:
            if when == "after":
                found(*arguments, **more)
            raise Unavailable("cut off")

        patched.setattr(place, cut_off)
        with pytest.raises(Unavailable, match="cut off"):
            site.run(site.give_order)
    assert site.bodies() == numbered(10)
    site.stop = StopSignal()
    assert site.run(lambda: None)["messages"] == 5
    assert site.bodies() == numbered(15)


def test_a_standby_that_took_over_and_is_started_again_goes_on_without_a_new_order(
    site: Site,
) -> None:
    site.offload()
    site.fill(site.replica, 10, 5)
    site.run(site.give_order)
    done = site.order.read_bytes()
    assert done.startswith(b"taken over at ")
    site.fill(site.replica, 15, 5)
    site.stop = StopSignal()
    assert site.run(lambda: None)["messages"] == 5
    assert site.order.read_bytes() == done
    assert site.bodies() == numbered(20)


def test_a_standby_takes_nothing_from_a_writer_that_lives_in_files(site: Site) -> None:
    """In a tier of files, a standby cannot take the epoch from a live writer. The other writer must
    be stopped first."""
    site.offload()
    provider = PosixProvider(site.root / "tier", "c")
    epoch = provider.acquire_writer("b")
    try:
        with pytest.raises(Fenced):
            site.run(site.give_order)
    finally:
        epoch.release()
        provider.close()


@pytest.mark.parametrize("text", ["", "\n", "go\n"])
def test_an_order_is_carried_out_whatever_is_in_its_file(tmp_path: Path, text: str) -> None:
    order = TakeOverOrder(tmp_path)
    order.path.write_text(text)
    assert (order.is_given, order.is_done) == (True, False)
    order.note_done(1)
    assert order.is_done


def test_the_store_of_a_slave_is_never_uploaded_without_standby(site: Site, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerRole=SLAVE\nbrokerName=b\nbrokerClusterName=c\n{SMALL_INDEX}")
    where = ["--tier", tmp_path / "tier", "--state", tmp_path / "state", "--config", conf]
    for how in ([], ["--follow"], ["--dry-run"]):
        ran = tieredstore("offload", site.replica, *where, *how)
        assert ran.code == 2
        assert "a slave never uploads" in one_line(ran)
    assert not (tmp_path / "tier").exists()
    site.state = tmp_path / "state"
    stop = StopSignal()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ORDER_FILE).touch()
    done: list[Any] = []

    def follow() -> None:
        done.append(
            jobs.offload(
                str(tmp_path / "tier"),
                site.replica,
                state=tmp_path / "state",
                config=conf,
                follow=True,
                standby=True,
                stop=stop,
                progress=lambda _: stop.set(),
            )
        )

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join(ANSWER_S)
    assert done
    assert done[0]["messages"] == 10
    metadata = DefaultMetadataStore(tmp_path / "state" / "config" / "tieredStoreMetadata.json", "b")
    metadata.load()
    assert [topic.topic for topic in metadata.topics()] == ["T"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("brokerRole=SLAVE", "a slave never uploads"),
        ("enableControllerMode=true", "a controller chooses"),
        ("enableDLegerCommitLog=true", "DLedger"),
    ],
)
def test_the_role_is_read_where_the_store_s_own_configuration_lies_beside_it(
    site: Site, tmp_path: Path, setting: str, reason: str
) -> None:
    where = ["--tier", tmp_path / "tier", "--state", tmp_path / "state"]
    names = ["--broker", "b", "--cluster", "c"]
    conf = site.replica.parent / "broker.conf"
    conf.write_text(f"{setting}\nstorePathRootDir={site.replica}\n")
    ran = tieredstore("offload", site.replica, *where, *names)
    assert ran.code == 2
    assert reason in one_line(ran)
    assert not (tmp_path / "tier").exists()
    conf.write_text(f"{setting}\nstorePathRootDir={tmp_path / 'another'}\n")
    assert tieredstore("offload", site.replica, *where, *names, "--dry-run").code == 0


@pytest.mark.parametrize("standby", [False, True])
@pytest.mark.parametrize("sign", ["key", "folder"])
def test_the_store_of_a_dledger_group_is_refused_with_the_reason(
    tmp_path: Path, standby: bool, sign: str
) -> None:
    store = tmp_path / "store"
    (store / ("dledger-n0" if sign == "folder" else "commitlog")).mkdir(parents=True)
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerName=b\nbrokerClusterName=c\n"
        + ("enableDLegerCommitLog=TRUE\n" if sign == "key" else "")
    )
    how = ["--follow", "--standby"] if standby else []
    ran = tieredstore(
        "offload", store, "--tier", tmp_path / "tier", "--state", tmp_path / "state",
        "--config", conf, *how,
    )  # fmt: skip
    assert ran.code == 2
    assert "DLedger" in one_line(ran)
    assert "may be cut off again" in one_line(ran)


def test_the_store_of_a_broker_whose_role_a_controller_changes_needs_standby(
    site: Site,
) -> None:
    (site.master / "epochFileCheckpoint").write_text("1\n1-0\n")
    with pytest.raises(Invalid, match="controller chooses the master"):
        site.offload()
    (site.replica / "epochFileCheckpoint").write_text("1\n1-0\n")
    assert site.run(site.give_order, lambda: None)["messages"] == 10


@pytest.mark.parametrize("how", [["--standby"], ["--standby", "--follow", "--take-over"]])
def test_standby_needs_follow_and_an_order(tmp_path: Path, how: list[str]) -> None:
    ran = tieredstore(
        "offload", tmp_path, "--tier", tmp_path / "t", "--state", tmp_path / "s", *how
    )
    assert ran.code == 2
    assert "--standby needs --follow" in ran.err
