"""Exports read a tier in an object store and write targets in the same store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from tests.kit.command_line import tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.compaction import compact
from tests.kit.object_store.late_ends import LateEnds
from tests.kit.object_store.servers import CREDENTIALS, REGION, ObjectStore
from tests.kit.tier_builder import BuiltTier, small_tier
from tieredstore.errors import Fenced, TieredStoreError
from tieredstore.jobs.exporting import job
from tieredstore.jobs.exporting.job import run_export
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.jobs.exporting.targets import objects, storage
from tieredstore.jobs.exporting.targets.storage import delta_options
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.scan.location import TierLocation, locate

SERVERS = ["versitygw", pytest.param("moto", marks=pytest.mark.slow)]
"""Servers for tests that need only one server. `test_from_bucket_to_bucket` already sends their
requests to both."""


@pytest.fixture
def built(object_store: ObjectStore, tmp_path: Path) -> BuiltTier:
    """A tier on the file system, which is also copied into the bucket."""
    built = small_tier(tmp_path / "source")
    ran = tieredstore("copy", "--from", built.url, "--to", object_store.url(), "--to-state",
                      tmp_path / "state", "--quiet")  # fmt: skip
    assert ran.code == 0, ran.err
    return built


def options_of(store: ObjectStore) -> dict[str, str]:
    scheme, _, place = store.endpoint.partition("://")
    return {"endpoint_override": place, "scheme": scheme, "region": REGION}


def request_of(form: Format, store: ObjectStore, root: Path) -> ExportRequest:
    if form is not Format.ICEBERG:
        return ExportRequest(form, f"s3://{store.bucket}/lake", target_options=options_of(store))
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{root}/catalog.db",
        "warehouse": f"s3://{store.bucket}/lake",
        "s3.endpoint": store.endpoint,
        "s3.region": REGION,
        "s3.access-key-id": CREDENTIALS[0],
        "s3.secret-access-key": CREDENTIALS[1],
    }
    return ExportRequest(form, catalog="lake", table="a.messages", target_options=catalog)


def run(source: TierLocation, request: ExportRequest) -> dict[str, Any]:
    return run_export(JobRun("export", LocalRunner(), Journal(None, {})), source, request)


def table_of(form: Format, store: ObjectStore, root: Path) -> pa.Table:
    options = options_of(store)
    if form is Format.PARQUET:
        system = fs.S3FileSystem(**options)
        place = f"{store.bucket}/lake"
        return ds.dataset(
            place, filesystem=system, format="parquet", partitioning="hive"
        ).to_table()
    if form is Format.DELTA:
        from deltalake import DeltaTable

        url = f"s3://{store.bucket}/lake"
        return DeltaTable(url, storage_options=delta_options(url, options)).to_pyarrow_table()
    from pyiceberg.catalog import load_catalog

    request = request_of(form, store, root)
    catalog = load_catalog("lake", **request.target_options)
    table = catalog.load_table("a.messages").scan().to_arrow()
    catalog.close()
    return table


@pytest.mark.parametrize("object_store", ["moto", "versitygw"], indirect=True)
@pytest.mark.parametrize("form", tuple(Format))
def test_from_bucket_to_bucket(
    form: Format, object_store: ObjectStore, built: BuiltTier, tmp_path: Path
) -> None:
    source, request = locate(object_store.url()), request_of(form, object_store, tmp_path)
    report = run(source, request)
    assert report["rows"] == 22
    table = table_of(form, object_store, tmp_path)
    names = ["topic", "queue_id", "queue_offset"]
    found = sorted(tuple(row[name] for name in names) for row in table.select(names).to_pylist())
    assert found == sorted(
        (topic, queue_id, item.queue_offset)
        for (topic, queue_id), items in built.stored.items()
        for item in items
    )
    assert run(source, request)["commit"] is None
    if form is Format.PARQUET:
        assert not [key for key in object_store.keys("lake") if "/staging/0" in key]


@pytest.mark.parametrize("object_store", SERVERS, indirect=True)
def test_small_files_in_a_bucket_are_merged(object_store: ObjectStore, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "source")
    request = request_of(Format.PARQUET, object_store, tmp_path)
    for _ in range(4):
        tier.append("orders", 0, 5)
        run(locate(tier.url), request)
    before = table_of(Format.PARQUET, object_store, tmp_path).sort_by("queue_offset")
    keys = set(object_store.keys("lake/topic=orders/"))
    place = f"s3://{object_store.bucket}/lake"
    report = compact(place, options=options_of(object_store))
    assert (report["merged_files"], report["files"], report["rows"]) == (4, 1, 20)
    [merged] = object_store.keys("lake/topic=orders/")
    assert merged not in keys
    after = table_of(Format.PARQUET, object_store, tmp_path)
    assert after.equals(before)
    assert compact(place, options=options_of(object_store))["commit"] is None
    tier.append("orders", 0, 5)
    assert run(locate(tier.url), request)["rows"] == 5
    assert not [key for key in object_store.keys("lake") if "/staging/" in key]


@pytest.mark.parametrize("object_store", SERVERS, indirect=True)
@pytest.mark.parametrize("form", tuple(Format))
def test_duplicates_of_two_runs_into_a_bucket(
    form: Format, object_store: ObjectStore, tmp_path: Path
) -> None:
    """Duplicates in two exports to a bucket are found. The job stages data for duplicate detection
    in the bucket, and removes it at the end."""
    tier = GrowingTier(tmp_path / "source")
    request = replace(request_of(form, object_store, tmp_path), dedup_window_ms=60_000)
    for number, keys in enumerate((["a", "b", "a"], ["b", "c"])):
        tier.append("orders", number, len(keys), uniq_keys=keys)
        report = run(locate(tier.url), request)
        assert report["duplicates"] == 1
    table = table_of(form, object_store, tmp_path)
    assert sorted(table["msg_id"].to_pylist()) == ["a", "b", "c"]
    assert not [key for key in object_store.keys("lake") if key.endswith((".keys", ".drops"))]


@pytest.mark.parametrize("form", tuple(Format))
def test_o01_bodies_that_end_late_are_not_taken_for_requests(
    form: Format, versitygw: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export sends no body whose end a server could take for another request. pyarrow's client
    does: it sends a signed body inside a chunked body, and versitygw answers when the inner body
    ends. If the end of the outer body arrives later, versitygw answers it with 400, and pyarrow
    takes this for the answer to its next request."""
    tier = small_tier(tmp_path / "source")
    monkeypatch.setattr(storage, "MAX_ATTEMPTS", 1)
    with LateEnds(versitygw.endpoint) as proxy:
        behind = versitygw.through(proxy.endpoint)
        request = request_of(form, behind, tmp_path)
        journal = Journal(None, {})
        report = run_export(JobRun("export", LocalRunner(1), journal), locate(tier.url), request)
        assert report["rows"] == 22
        assert table_of(form, behind, tmp_path).num_rows == 22
    puts = [head.lower() for head in proxy.heads if head.startswith(b"PUT ")]
    assert len(puts) >= 3
    assert not [head for head in puts if b"transfer-encoding" in head]


def test_large_files_are_sent_in_parts(
    versitygw: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 3000, body_bytes=10_000)
    monkeypatch.setattr(objects, "_IN_MEMORY_BYTES", 1 << 10)
    monkeypatch.setattr(objects, "_PART_BYTES", 5 << 20)
    source = locate(tier.url)
    for form in Format:
        request = replace(request_of(form, versitygw, tmp_path / form.value), zstd_level=1)
        (tmp_path / form.value).mkdir()
        if form is not Format.ICEBERG:
            request = replace(request, to=f"s3://{versitygw.bucket}/lake/{form.value}")
        assert run(source, request)["rows"] == 3000
    assert not versitygw.open_uploads()


def test_of_two_exports_to_a_bucket_one_wins(
    object_store: ObjectStore, built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two concurrent exports to a bucket both pass the check of the state. Only one of them
    commits, because the other one's conditional PUT fails."""
    source = locate(object_store.url())
    request = request_of(Format.PARQUET, object_store, tmp_path)
    target_commit = job.target_of(request).commit.__func__  # type: ignore[attr-defined]

    def late(target: Any, *args: Any) -> str | None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(target), "commit", target_commit)
            run(source, request)
        found: str | None = target_commit(target, *args)
        return found

    from tieredstore.jobs.exporting.targets.parquet import ParquetTarget

    monkeypatch.setattr(ParquetTarget, "commit", late)
    with pytest.raises(Fenced, match="another export"):
        run(source, request)
    assert table_of(Format.PARQUET, object_store, tmp_path).num_rows == 22


@pytest.mark.parametrize("form", [Format.PARQUET, Format.DELTA])
def test_wrong_keys_are_one_line(form: Format, versitygw: ObjectStore) -> None:
    options = {**options_of(versitygw), "access_key": CREDENTIALS[0], "secret_key": "wrong"}
    request = ExportRequest(form, f"s3://{versitygw.bucket}/lake", target_options=options)
    with pytest.raises(TieredStoreError, match=f"s3://{versitygw.bucket}/lake") as caught:
        job.target_of(request).prepare()
    assert "wrong" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
