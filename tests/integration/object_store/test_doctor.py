"""`tieredstore doctor` runs on real servers, and behind a proxy that makes the servers fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, one_line, tieredstore
from tests.kit.fault_proxy.faults import answer
from tests.kit.fault_proxy.http import Forward, Reply, Request
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.object_store.servers import NAMES, ObjectStore
from tests.kit.tier_builder import small_tier


def doctor(store: ObjectStore, *options: str) -> Ran:
    return tieredstore(
        "doctor", "--tier", store.url(), "--output", "json", "--no-throughput", *options
    )


def verdicts(ran: Ran) -> dict[str, str]:
    return {row["probe"]: row["verdict"] for row in ran.record["probes"]}


def code_of(store: ObjectStore) -> int:
    """Return the exit code expected for a server. LocalStack compares keys in their URL encoding.
    So its later pages of a listing lack keys with a `|` or with characters that are not ASCII."""
    return 7 if store.server == "localstack" else 0


def without_condition(request: Request, forward: Forward) -> Reply:
    """Remove If-None-Match from a request, to simulate an endpoint without conditional writes."""
    kept = tuple(pair for pair in request.headers if pair[0].lower() != "if-none-match")
    return forward(replace(request, headers=kept))


@pytest.mark.parametrize("object_store", NAMES, indirect=True)
def test_each_server_is_safe_and_left_as_it_was(object_store: ObjectStore) -> None:
    ran = doctor(object_store)
    assert ran.code == code_of(object_store), ran.out
    found = verdicts(ran)
    if object_store.server == "localstack":
        assert found.pop("listing") == "note"
        assert found.pop("paging") == "unsafe"
    assert found.pop("checksum") == ("ok" if object_store.checks_checksums else "note")
    for setting in ("versioning", "lifecycle", "object lock"):
        assert found.pop(setting) in {"ok", "unknown"}
    assert set(found.values()) == {"ok", "info"}
    assert ran.record["safe"] is (ran.code == 0)
    assert object_store.keys() == {}
    assert object_store.open_uploads() == 0


def test_o11_an_endpoint_that_ignores_conditions_is_unsafe_and_takes_no_writer(
    object_store: ObjectStore, proxy: FaultProxy, tmp_path: Path
) -> None:
    proxy.inject(without_condition, "PutObject")
    proxy.inject(without_condition, "CompleteMultipartUpload")
    spoiled = object_store.through(proxy.endpoint)

    ran = doctor(spoiled)

    assert ran.code == 7
    found = verdicts(ran)
    unsafe = {name for name, verdict in found.items() if verdict == "unsafe"}
    assert unsafe - {"paging"} == {"conditional put", "conditional race", "multipart"}
    built = small_tier(tmp_path / "source")
    copied = tieredstore(
        "copy", "--from", built.url, "--to", spoiled.url(), "--to-state", tmp_path / "state"
    )
    assert copied.code == 2
    assert "ignores If-None-Match" in one_line(copied)
    assert object_store.keys() == {}


@pytest.mark.parametrize("operation", ["PutObject", "GetObject", "ListObjectsV2"])
def test_a_missing_permission_is_named(
    object_store: ObjectStore, proxy: FaultProxy, operation: str
) -> None:
    proxy.inject(answer(403, "AccessDenied"), operation)
    ran = doctor(object_store.through(proxy.endpoint))
    assert ran.code in {2, 7}
    told = ran.err if ran.code == 2 else str(ran.record["probes"])
    assert f"{operation} " in told
    assert "permission denied" in told


def test_settings_that_may_not_be_read_are_unknown_and_no_harm(
    object_store: ObjectStore, proxy: FaultProxy
) -> None:
    def denied(request: Request, forward: Forward) -> Reply:
        settings = {"versioning", "lifecycle", "object-lock"}
        if settings & request.query.keys():
            return answer(403, "AccessDenied")(request, forward)
        return forward(request)

    proxy.inject(denied)
    ran = doctor(object_store.through(proxy.endpoint))
    assert ran.code == code_of(object_store), ran.out
    assert {verdicts(ran)[name] for name in ("versioning", "lifecycle", "object lock")} == {
        "unknown"
    }


def rules_of(store: ObjectStore, rules: Sequence[dict[str, object]]) -> bool:
    """Set lifecycle rules. Return False if the server does not support them."""
    if store.server == "versitygw":
        return False
    client = store.client()
    client.put_bucket_lifecycle_configuration(
        Bucket=store.bucket,
        LifecycleConfiguration={"Rules": rules},  # type: ignore[typeddict-item]
    )
    client.close()
    return True


def test_h01_a_rule_that_deletes_from_the_tier_is_unsafe(object_store: ObjectStore) -> None:
    rule = {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "tier/"}}
    told = rules_of(object_store, [{**rule, "Expiration": {"Days": 30}}])
    ran = doctor(object_store)
    assert verdicts(ran)["lifecycle"] == ("unsafe" if told else "unknown")
    assert ran.code == (7 if told else code_of(object_store))


def test_old_versions_that_are_kept_are_told(object_store: ObjectStore) -> None:
    client = object_store.client()
    client.put_bucket_versioning(
        Bucket=object_store.bucket, VersioningConfiguration={"Status": "Enabled"}
    )
    client.close()
    ran = doctor(object_store)
    assert verdicts(ran)["versioning"] == "note"
    assert ran.code == code_of(object_store)


def test_h01_a_bucket_that_is_not_there_is_told_and_not_made(object_store: ObjectStore) -> None:
    other = replace(object_store, bucket="no-such-bucket-here")
    ran = doctor(other)
    assert ran.code == 2
    assert "the bucket does not exist" in one_line(ran)
    client = object_store.client()
    names = [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
    client.close()
    assert "no-such-bucket-here" not in names
