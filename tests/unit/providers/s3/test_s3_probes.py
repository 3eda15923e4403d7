"""Tests of the probe for lifecycle rules that would affect a tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.kit.s3.scripted_server import Reply, ScriptedServer, refusal, s3_client
from tieredstore.contracts.probing import Verdict
from tieredstore.errors import Unavailable
from tieredstore.providers.s3.probes import _S3Probes, judge_rules

DELETES = {"ID": "r", "Status": "Enabled", "Expiration": {"Days": 30}}
ARCHIVES = {"Transitions": [{"Days": 1, "StorageClass": "DEEP_ARCHIVE"}]}
MOVES = {"Transitions": [{"Days": 1, "StorageClass": "STANDARD_IA"}]}
ABORTS = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}
OLD_VERSIONS = {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        ({**DELETES, "Filter": {}}, Verdict.UNSAFE),
        ({**DELETES, "Prefix": "tiers/"}, Verdict.UNSAFE),
        ({**DELETES, "Filter": {"Prefix": "tiers/a/broker"}}, Verdict.UNSAFE),
        ({**DELETES, "Filter": {"And": {"Prefix": "tiers/a"}}}, Verdict.UNSAFE),
        ({**DELETES, "Filter": {"Prefix": "tiers/b"}}, Verdict.OK),
        ({**DELETES, "Filter": {"Tag": {"Key": "k", "Value": "v"}}}, Verdict.OK),
        ({**DELETES, "Filter": {"And": {"Prefix": "", "Tags": [{"Key": "k"}]}}}, Verdict.OK),
        ({**DELETES, "Filter": {}, "Status": "Disabled"}, Verdict.OK),
        ({"Status": "Enabled", "Filter": {}, **ARCHIVES}, Verdict.UNSAFE),
        ({"Status": "Enabled", "Filter": {}, **MOVES}, Verdict.NOTE),
        ({"Status": "Enabled", "Filter": {}, **ABORTS}, Verdict.OK),
        ({"Status": "Enabled", "Filter": {}, **OLD_VERSIONS}, Verdict.OK),
        (
            {"Status": "Enabled", "Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}},
            Verdict.OK,
        ),
    ],
)
def test_a_rule_that_takes_objects_of_the_tier_away_is_unsafe(
    rule: Mapping[str, object], verdict: Verdict
) -> None:
    assert judge_rules([rule], "tiers/a/").verdict is verdict


def test_the_worst_rule_counts() -> None:
    moves = {"Status": "Enabled", "Filter": {}, **MOVES}
    found = judge_rules([moves, {**DELETES, "Filter": {}}], "tiers/a/")
    assert found.verdict is Verdict.UNSAFE
    assert "rule 'r' deletes objects" in found.found


@pytest.fixture
def probes(server: ScriptedServer) -> Iterator[_S3Probes]:
    with s3_client(server.url) as client:
        yield _S3Probes(client._lane, client._place, "probe/", is_fenced=True)


def small_parts(server: ScriptedServer, completion: Reply) -> None:
    upload = b"<R><UploadId>u</UploadId></R>"
    part = Reply(headers={"ETag": '"p"'})
    server.script = [Reply(body=upload), part, part, completion, completion]
    server.otherwise = lambda _: Reply(204)


def test_small_parts_are_refused_or_accepted_and_no_answer_is_neither(
    server: ScriptedServer, probes: _S3Probes
) -> None:
    small_parts(server, refusal(400, "EntityTooSmall"))
    found = probes.small_parts()
    assert (found.verdict, found.found) == (Verdict.OK, "refused, as S3 does (EntityTooSmall)")
    for completion in (refusal(500, "InternalError"), Reply(drop=True)):
        small_parts(server, completion)
        with pytest.raises(Unavailable):
            probes.small_parts()


@pytest.mark.parametrize(
    ("length", "found"), [("<Days>3</Days>", "3 days"), ("<Years>2</Years>", "2 years")]
)
def test_a_default_retention_is_told_with_its_length(
    server: ScriptedServer, probes: _S3Probes, length: str, found: str
) -> None:
    rule = f"<Rule><DefaultRetention><Mode>GOVERNANCE</Mode>{length}</DefaultRetention></Rule>"
    body = f"<ObjectLockConfiguration>{rule}</ObjectLockConfiguration>".encode()
    server.otherwise = lambda _: Reply(body=body)
    told = probes.object_lock()
    assert (told.verdict, told.found) == (
        Verdict.NOTE,
        f"default retention GOVERNANCE, {found}",
    )
