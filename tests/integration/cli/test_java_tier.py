"""All read-only verbs work on a tier that a Java broker wrote, with and without its state."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import files_of, tieredstore
from tests.kit.oracle import keys_of

Manifest = dict[str, Any]


@pytest.fixture(scope="module", params=["state", "tier alone"])
def where(request: pytest.FixtureRequest, public_a: Path) -> list[str]:
    """Return the command line options that name the tier."""
    options = ["--tier", f"file://{public_a / 'tiered'}"]
    if request.param == "state":
        options += ["--state", str(public_a / "store"), "--config", str(public_a / "broker.conf")]
    return options


@pytest.fixture(scope="module")
def tiered(public_a_manifest: Manifest) -> dict[str, list[dict[str, Any]]]:
    """Return the messages that the manifest lists as uploaded to the tier, by topic."""
    messages: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for message in public_a_manifest["messages"]:
        if message.get("tiered"):
            messages[message["topic"]].append(message)
    return messages


def without_warnings(text: str) -> list[str]:
    """Return the lines without the warnings about Java's broker.conf."""
    return [line for line in text.splitlines() if "broker.conf: keys of Java" not in line]


def test_cat_gives_every_tiered_message_with_its_body(
    where: list[str], tiered: dict[str, list[dict[str, Any]]]
) -> None:
    count = 0
    for topic, expected in tiered.items():
        ran = tieredstore("cat", *where, "--topic", topic, "--body", "sha256", "--output", "ndjson")
        assert (ran.code, without_warnings(ran.err)) == (0, [])
        expected = sorted(expected, key=lambda row: (row["queueId"], row["queueOffset"]))
        count += len(expected)
        assert len(ran.rows) == len(expected)
        for row, right in zip(ran.rows, expected, strict=True):
            assert row["topic"] == topic
            assert row["queue_id"] == right["queueId"]
            assert row["queue_offset"] == right["queueOffset"]
            assert row["msg_id"] == right["uniqKey"]
            assert row["body"] == right["bodySHA256"]
            assert row["body_length"] == right["bodyLength"]
            assert row["body_crc"] == right["bodyCRC"]
            assert row["stored_length"] == right.get("storedBodyLength", right["bodyLength"])
            assert row["tags"] == right["tags"]
            assert " ".join(row["keys"]) == (right["keys"] or "")
            assert row["properties"] == right["properties"]
            assert row["born_timestamp"] == right["bornTimestamp"]
            assert row["store_timestamp"] == right["storeTimestamp"]
            assert row["physical_offset"] == right["tiered"]["commitLogOffset"]
            assert row["flag"] == right["flag"]
            assert row["reconsume_times"] == right["reconsumeTimes"]
            assert row["broker"] == "labBroker"
            # The manifest's sysFlag has the compression bit cleared, as Java's decoder does.
            assert row["sys_flag"] & ~1 == right["sysFlag"] & ~1
    assert count == 1759


def test_verify_finds_a_sound_tier_sound(where: list[str]) -> None:
    ran = tieredstore("verify", *where, "--output", "json")
    assert ran.code == 0
    report = ran.record
    assert report["damage"] == 0
    assert (report["queues"], report["messages"]) == (15, 1759)
    assert {finding["kind"] for finding in report["findings"]} == {"index-item-dangling"}


def test_ls_and_stat_say_what_the_manifest_says(
    where: list[str], public_a_manifest: Manifest
) -> None:
    right = {
        (state["topic"], state["queueId"]): state["tiered"]
        for state in public_a_manifest["state"]["queues"]
        if "tiered" in state
    }
    rows = tieredstore("ls", *where, "--output", "ndjson").rows
    assert {(row["topic"], row["queue_id"]) for row in rows} == set(right)
    for row in rows:
        state = right[row["topic"], row["queue_id"]]
        assert (row["min_offset"], row["max_offset"]) == (state["cqMin"], state["cqCommit"])
    record = tieredstore("stat", *where, "--output", "json").record
    assert record["messages"] == 1759
    assert record["commit_log_bytes"] == sum(
        segment["size"] for state in right.values() for segment in state["commitLogSegments"]
    )
    segments = tieredstore("stat", *where, "--topic", "pub_big", "--output", "json").record
    assert [segment["base_offset"] for segment in segments["segments"]] == [0, 168033, 1216893, 0]


def test_cat_by_offset_time_tag_and_limit(
    where: list[str], tiered: dict[str, list[dict[str, Any]]]
) -> None:
    def cat(*options: object) -> list[tuple[int, int]]:
        ran = tieredstore(
            "cat", *where, "--topic", "pub_multi", *options, "--output", "ndjson", "--body", "none"
        )
        assert ran.code == 0, ran.err
        return [(row["queue_id"], row["queue_offset"]) for row in ran.rows]

    rows = sorted(tiered["pub_multi"], key=lambda row: (row["queueId"], row["queueOffset"]))

    def expected(wanted: Any) -> list[tuple[int, int]]:
        return [(row["queueId"], row["queueOffset"]) for row in rows if wanted(row)]

    assert cat("--queue", 1, "--from-offset", 5, "--until-offset", 9) == [
        (1, 5),
        (1, 6),
        (1, 7),
        (1, 8),
    ]
    assert cat("--from-offset", 10**12) == []
    assert len(cat("--limit", 7)) == 7
    times = sorted({row["storeTimestamp"] for row in rows})
    for since, until in [(times[0], times[-1]), (times[3], times[4]), (times[2], times[-3])]:
        assert cat("--since", since, "--until", until) == expected(
            lambda row, low=since, high=until: low <= row["storeTimestamp"] < high
        )
    for tag in {row["tags"] for row in rows if row["tags"]}:
        assert cat("--tag", tag) == expected(lambda row, wanted=tag: row["tags"] == wanted)
    assert cat("--tag", "no such tag") == []
    assert cat("--since", "2026-11-21T13:05:22Z", "--queue", 3) == expected(
        lambda row: row["queueId"] == 3
    )


def test_query_finds_every_key_of_every_tiered_message(
    where: list[str], tiered: dict[str, list[dict[str, Any]]]
) -> None:
    by_key: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
    for topic, messages in tiered.items():
        for message in messages:
            for key in keys_of(message):
                by_key[topic, key].add((message["queueId"], message["queueOffset"]))
    # Every 40th: each query opens the tier again.
    for (topic, key), right in sorted(by_key.items())[::40]:
        ran = tieredstore(
            "query",
            *where,
            *("--topic", topic, "--key", key, "--limit", 1000),
            *("--output", "ndjson", "--body", "none"),
        )
        assert ran.code == 0, ran.err
        assert {(row["queue_id"], row["queue_offset"]) for row in ran.rows} == right


def test_query_by_message_id_needs_no_topic(
    where: list[str], tiered: dict[str, list[dict[str, Any]]]
) -> None:
    message = tiered["pub_v6"][3]
    ran = tieredstore("query", *where, "--msg-id", message["uniqKey"], "--output", "ndjson")
    assert [row["msg_id"] for row in ran.rows] == [message["uniqKey"]]
    shown = ran.rows[0]["offset_msg_id"]
    assert len(shown) == 56  # the message has an IPv6 store host
    again = tieredstore("query", *where, "--msg-id", shown.lower(), "--output", "ndjson")
    assert message["uniqKey"] in {row["msg_id"] for row in again.rows}


def test_what_is_not_there_is_exit_code_3_and_one_line(where: list[str]) -> None:
    ran = tieredstore(
        "query", *where, "--topic", "pub_multi", "--key", "no-such-key", "--output", "json"
    )
    assert (ran.code, ran.record) == (3, [])
    [line] = without_warnings(ran.err)
    assert "no-such-key" in line


def test_reading_verbs_change_no_file(public_a: Path) -> None:
    before = files_of(public_a)
    where = ["--tier", f"file://{public_a / 'tiered'}", "--state", str(public_a / "store")]
    for verb in ("ls", "stat", "verify"):
        assert tieredstore(verb, *where).code == 0
    assert tieredstore("cat", *where, "--topic", "pub_fifo").code == 0
    assert tieredstore("query", *where, "--topic", "pub_fifo", "--key", "x").code == 3
    assert files_of(public_a) == before
