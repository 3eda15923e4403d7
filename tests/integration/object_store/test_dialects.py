"""Each dialect is tested through a proxy that implements it, in front of a server that checks all
requests. The tests cover the provider contract, fencing, `doctor`, versioned buckets, and a wrong
dialect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from tests.kit.command_line import Ran, tieredstore
from tests.kit.fault_proxy.faults import answer, hold, lose_reply
from tests.kit.object_store.fixtures import new_bucket
from tests.kit.object_store.servers import ObjectStore, Servers, boto_client
from tests.kit.object_store.tiers import BROKER, open_tier
from tests.kit.object_store.vendors import VENDORS, VendorStore, new_prefix, vendor_store
from tieredstore.contracts.objects import CopiedPart, Part
from tieredstore.contracts.segment import FencedWrite, SegmentProvider, Written
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.testing.provider.capabilities import (
    ConditionalProviderContract,
    PairedProviderContract,
)
from tieredstore.testing.provider.samples import content, segment_id, write_whole

MIB = 1 << 20
VOID_IF_VERSIONED = ("oss", "cos")
FENCED = ("google",)


@pytest.fixture(scope="module")
def vendors(servers: Servers) -> Iterator[Callable[[str], VendorStore]]:
    """One bucket and one proxy for each dialect. Each test uses a different key prefix."""
    opened: dict[str, VendorStore] = {}
    with ExitStack() as stack:

        def get_vendor(dialect: str) -> VendorStore:
            if dialect not in opened:
                behind = new_bucket(servers, "versitygw")
                opened[dialect] = stack.enter_context(vendor_store(behind, dialect))
            return opened[dialect]

        yield get_vendor


@pytest.fixture(params=VENDORS)
def spoken(
    request: pytest.FixtureRequest, vendors: Callable[[str], VendorStore]
) -> Iterator[VendorStore]:
    found = vendors(request.param)
    yield found
    found.proxy.heal()
    found.proxy.inject(found.vendor)


@pytest.fixture
def prefix() -> str:
    return new_prefix()


class _OnVendor(PairedProviderContract, ConditionalProviderContract):
    dialect: str
    listing_count = 12  # listings are the same in every dialect
    state_machine_examples = 1

    @pytest.fixture
    def provider(self, vendors: Callable[[str], VendorStore]) -> Iterator[SegmentProvider]:
        self.spoken = vendors(self.dialect)
        self.prefix = new_prefix()
        self.opened: list[SegmentProvider] = []
        with closing(self.spoken.tier(self.prefix)) as provider:
            yield provider
            for other in self.opened:
                other.close()

    def reopen(self, provider: SegmentProvider) -> SegmentProvider:
        self.opened.append(self.spoken.tier(self.prefix))
        return self.opened[-1]


class TestRenamedMetadata(_OnVendor):
    """Metadata headers have other names, as on COS and OBS."""

    dialect = "oss"


@pytest.mark.slow  # the tests below run each dialect
class TestOneFamilyOfHeaders(_OnVendor):
    dialect = "google"


# One writer of several wins


def test_w01_racing_writers_tile_the_log_exactly(spoken: VendorStore, prefix: str) -> None:
    before = spoken.vendor.asked
    acknowledged: list[tuple[int, bytes]] = []
    lost = 0
    lock = threading.Lock()

    def race(number: int) -> None:
        nonlocal lost
        with closing(spoken.tier(prefix)) as provider:
            segment = provider.open(segment_id())
            for turn in range(8):
                data = content(1 + (number + turn) % 7, number * 31 + turn)
                position = segment.size()
                result = segment.write(position, [data])
                with lock:
                    if isinstance(result, Written):
                        acknowledged.append((position, data))
                    else:
                        assert isinstance(result, FencedWrite)
                        lost += 1

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(race, number) for number in range(4)]:
            future.result()
    with closing(spoken.tier(prefix)) as provider:
        (listing,) = provider.list()
        whole = bytes(provider.open(segment_id()).read(0, listing.size_bytes))
    assert b"".join(data for _, data in sorted(acknowledged)) == whole
    assert len(acknowledged) + lost == 32
    assert spoken.vendor.asked - before >= len(acknowledged)


def test_w01_a_writer_that_was_taken_over_writes_no_more(spoken: VendorStore, prefix: str) -> None:
    with (
        closing(spoken.tier(prefix)) as first,
        closing(spoken.tier(prefix)) as second,
    ):
        first.acquire_writer(BROKER)
        zombie = first.open(segment_id())
        write_whole(zombie, b"first ")
        with pytest.raises(Fenced):
            second.acquire_writer(BROKER)
        epoch = second.acquire_writer(BROKER, take_over=True)
        write_whole(second.open(segment_id()), b"second", 6)
        for attempt in (lambda: zombie.write(12, [b"zombie"]), zombie.seal, zombie.delete):
            with pytest.raises(Fenced, match=epoch.owner):
                attempt()
        found = second.open(segment_id())
        assert bytes(found.read(0, found.size())) == b"first second"
        epoch.release()


def test_w01_a_put_that_was_on_its_way_is_refused_in_the_vendors_words(
    spoken: VendorStore, prefix: str
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    with (
        closing(spoken.client(prefix)) as late,
        closing(spoken.client(prefix)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        spoken.proxy.inject(hold(reached, go_on), "PutObject", key="/k$", calls={1})
        put = pool.submit(late.put_if_absent, "k", [b"late"], {"w": "1:late"})
        assert reached.wait(60)
        assert other.put_if_absent("k", [b"first"], {"w": "2:other"})
        go_on.set()
        assert put.result() is False
        assert other.get_range("k", 0, 10) == b"first"
        found = other.head("k")
        assert found is not None
        assert found.metadata == {"w": "2:other"}


def test_o03_a_lost_reply_is_our_own_success(spoken: VendorStore, prefix: str) -> None:
    """A conditional create succeeds, but its reply is lost. The writer tries again, is refused by
    the server, finds its own bytes, and reports success."""
    before = spoken.vendor.refused
    with closing(spoken.tier(prefix)) as provider:
        epoch = provider.acquire_writer(BROKER)
        spoken.proxy.inject(lose_reply(), "PutObject", key=r"/c\.", calls={1})
        assert provider.open(segment_id()).write(0, [b"ours"]) == Written(4)
        tried = int(spoken.dialect in FENCED)  # before the first write
        assert spoken.vendor.refused - before == tried + 1
        epoch.release()


def test_w01_an_object_of_parts_is_made_once(spoken: VendorStore, prefix: str) -> None:
    """An object made of parts is created once. Parts are copied by the server if the vendor
    supports this. Otherwise the client reads and sends them again."""
    data = content(5 * MIB + 1)
    with closing(spoken.client(prefix)) as client:
        assert client.put_if_absent("source", [data], {})
        parts: list[Part] = [CopiedPart("source", 0, len(data)), [b"tail", b"end"]]
        assert client.compose("whole", parts, {"w": "1:first"})
        assert not client.compose("whole", [[b"another"]], {"w": "2:second"})
        found = client.head("whole")
        assert found is not None
        assert (found.size_bytes, found.metadata) == (len(data) + 7, {"w": "1:first"})
        whole = client.get_range("whole", 0, len(data) + 10)
        assert whole == data + b"tailend"
        copied = spoken.proxy.count("UploadPartCopy", key=f"^{prefix}/whole$")
        assert copied == (0 if spoken.dialect == "google" else 1)
        with pytest.raises(Unavailable, match=r"gone|no object"):
            client.compose("other", [CopiedPart("absent", 0, 5 * MIB), [b"x"]], {})
        client.delete(["source", "whole"])
    assert spoken.store.keys(prefix) == {}
    assert spoken.store.open_uploads() == 0


# Messages for the operator


def doctor(spoken: VendorStore, prefix: str) -> Ran:
    url = spoken.store.url(prefix, **spoken.options)
    return tieredstore("doctor", "--tier", url, "--output", "json", "--no-throughput")


def set_versioning(spoken: VendorStore, status: str) -> None:
    """Set versioning with the vendor's own header names."""
    client = boto_client(spoken.store.endpoint)
    client.put_bucket_versioning(
        Bucket=spoken.store.bucket,
        VersioningConfiguration={"Status": status},  # type: ignore[typeddict-item]
    )
    client.close()


def test_doctor_finds_each_vendor_safe(spoken: VendorStore, prefix: str) -> None:
    ran = doctor(spoken, prefix)
    assert ran.code == 0, ran.out
    found = {row["probe"]: row for row in ran.record["probes"]}
    assert found["dialect"]["found"].startswith(f"{spoken.dialect}: x-")
    fenced = spoken.dialect in FENCED
    assert found["dialect"]["verdict"] == ("info" if fenced else "note")
    for probe in ("conditional put", "conditional race", "multipart", "checksum"):
        assert found[probe]["verdict"] == "ok", found[probe]
    assert spoken.store.keys(prefix) == {}
    assert spoken.store.open_uploads() == 0


@pytest.mark.parametrize(
    ("dialect", "status"),
    [("oss", "Enabled"), ("oss", "Suspended"), ("cos", "Suspended"), ("google", "Enabled")],
)
def test_a_versioned_bucket_is_refused_where_it_makes_the_condition_void(
    versitygw: ObjectStore, dialect: str, status: str, prefix: str
) -> None:
    with vendor_store(versitygw, dialect) as spoken:
        for word in ("Enabled", status):
            set_versioning(spoken, word)
        ran = doctor(spoken, prefix)
        found = {row["probe"]: row["verdict"] for row in ran.record["probes"]}
        void = spoken.dialect in VOID_IF_VERSIONED
        assert ran.code == (7 if void else 0), ran.out
        assert (found["versioning"] == "unsafe") is void
        assert found["conditional put"] == ("unsafe" if void else "ok")
        with closing(spoken.tier(prefix)) as provider:
            if void:
                words = rf"no effect in a bucket whose versioning is {status.lower()}.*never had"
                with pytest.raises(Invalid, match=words):
                    provider.acquire_writer(BROKER)
                assert spoken.store.keys() == {}
            else:
                provider.acquire_writer(BROKER).release()


def test_w01_where_exclusion_is_not_promised_no_writer_is_fenced(
    spoken: VendorStore, prefix: str
) -> None:
    """A writer is refused if the vendor does not promise that only one of two concurrent creates of
    a key succeeds. A test race could pass by chance, so it would prove nothing. The error names the
    configuration key."""
    options = {**spoken.options, "fencing": "epoch"}
    url = spoken.store.url(prefix, **options)
    with closing(open_tier(spoken.store, prefix, **options)) as provider:
        if spoken.dialect in FENCED:
            provider.acquire_writer(BROKER).release()
            return
        for attempt in (
            lambda: provider.acquire_writer(BROKER),
            lambda: provider.acquire_writer(BROKER, take_over=True),
            lambda: provider.open(segment_id()).write(0, [b"data"]),
        ):
            with pytest.raises(Invalid, match=r"forbid-overwrite.*tieredStoreChunkFencing=none"):
                attempt()
        assert list(provider.list()) == []
    assert spoken.store.keys(prefix) == {}
    ran = tieredstore("doctor", "--tier", url, "--output", "json", "--no-throughput")
    assert ran.code == 7, ran.out
    found = {row["probe"]: row for row in ran.record["probes"]}
    unsafe = {name for name, row in found.items() if row["verdict"] == "unsafe"}
    assert unsafe == {"dialect"}
    assert "tieredStoreChunkFencing is none" in found["dialect"]["meaning"]
    assert spoken.store.keys(prefix) == {}


def test_a_bucket_that_does_not_tell_its_versioning_is_tried(
    vendors: Callable[[str], VendorStore], prefix: str
) -> None:
    spoken = vendors("oss")
    denied = spoken.proxy.inject(answer(403, "AccessDenied"), "GetBucketVersioning")
    with closing(spoken.tier(prefix)) as provider:
        provider.acquire_writer(BROKER).release()
    assert denied.hits == 1
    spoken.proxy.heal()
    spoken.proxy.inject(spoken.vendor)


@pytest.mark.parametrize(
    ("vendor", "dialect", "told"),
    [
        ("oss", "s3", "does not implement it"),
        ("cos", "s3", "ignores If-None-Match"),
        ("obs", "s3", "ignores If-None-Match"),
        ("google", "s3", "ignores If-None-Match"),
    ],
)
def test_the_words_of_another_vendor_open_no_tier(
    vendors: Callable[[str], VendorStore], vendor: str, dialect: str, told: str
) -> None:
    """A tier cannot be opened with the dialect of another vendor. Each vendor refuses or ignores
    headers of the other dialect. The writer takes neither reaction for a sign that it is fenced."""
    spoken = vendors(vendor)
    asked = spoken.vendor.asked
    options = {**spoken.options, "dialect": dialect, "fencing": "epoch"}
    with (
        closing(open_tier(spoken.store, new_prefix(), **options)) as provider,
        pytest.raises(Invalid, match=told),
    ):
        provider.acquire_writer(BROKER)
    assert spoken.vendor.asked == asked


@pytest.mark.parametrize("dialect", ["oss", "google"])
def test_a_wrong_secret_is_one_clear_error(
    vendors: Callable[[str], VendorStore], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each dialect, a wrong secret causes one clear error. The servers check the signatures, and
    these include the vendor's own headers."""
    spoken = vendors(dialect)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with (
        closing(open_tier(spoken.store, new_prefix(), **spoken.options)) as provider,
        pytest.raises(Invalid, match="secret key does not belong"),
    ):
        provider.acquire_writer(BROKER)
