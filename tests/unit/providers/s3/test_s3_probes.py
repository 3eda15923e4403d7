"""What lifecycle rules mean for a tier."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tieredstore.contracts.probing import Verdict
from tieredstore.providers.s3.probes import judge_rules

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
