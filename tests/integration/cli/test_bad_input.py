"""Bad input prints one line on stderr with the error, its location and the remedy. It prints no
traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.tier_builder import BROKER, BuiltTier, flip, small_tier
from tieredstore.contracts.segment import FileSegmentType, SegmentId

READING_VERBS = {
    "ls": [],
    "stat": [],
    "cat": ["--topic", "orders"],
    "query": ["--topic", "orders", "--key", "orders-0-1"],
    "verify": [],
}


@pytest.fixture
def tier(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path)


def refuse(*arguments: object, code: int = 2) -> str:
    ran = tieredstore(*arguments)
    assert ran.code == code, ran.err
    return one_line(ran)


@pytest.mark.parametrize("verb", READING_VERBS)
def test_every_reading_verb_works_on_the_sound_tier(tier: BuiltTier, verb: str) -> None:
    for state in ([], ["--state", tier.state]):
        ran = tieredstore(verb, "--tier", tier.url, *state, *READING_VERBS[verb])
        assert (ran.code, ran.err) == (0, "")
        assert ran.out


@pytest.mark.parametrize("verb", READING_VERBS)
def test_missing_and_foreign_directories(tier: BuiltTier, verb: str, tmp_path: Path) -> None:
    more = READING_VERBS[verb]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "README").write_text("not a tier")
    a_file = foreign / "README"
    for path, reason in (
        (tmp_path / "nowhere", "no such directory"),
        (foreign, "no tier here"),
        (a_file, "not a directory"),
    ):
        line = refuse(verb, "--tier", f"file://{path}", *more)
        assert str(path) in line
        assert reason in line
    for state, reason in (
        (tmp_path / "nowhere", "no such directory"),
        (foreign, "tieredStoreMetadata.json"),
    ):
        line = refuse(verb, "--tier", tier.url, "--state", state, *more)
        assert str(state) in line
        assert reason in line


@pytest.mark.parametrize("url", ["tier", "/tmp/tier", "file://tier/x", "s3://b", "memory:", ""])
def test_urls_that_are_none(url: str) -> None:
    assert "tier" in refuse("ls", "--tier", url)


@pytest.mark.parametrize("verb", ["ls", "stat", "cat", "query"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b'{"topicMetadataTable": 7}', b"[" * 100_000]
)
def test_i01_metadata_that_does_not_parse_is_named(
    tier: BuiltTier, verb: str, content: bytes
) -> None:
    path = tier.metadata.path
    path.with_name(path.name + ".bak").write_bytes(content or b"{")
    path.write_bytes(content)
    before = sorted(tier.state.rglob("*"))
    line = refuse(verb, "--tier", tier.url, "--state", tier.state, *READING_VERBS[verb], code=1)
    assert path.name in line
    assert sorted(tier.state.rglob("*")) == before


def test_i01_verify_reports_bad_metadata_and_checks_the_tier_alone(tier: BuiltTier) -> None:
    path = tier.metadata.path
    path.write_bytes(b"{")
    path.with_name(path.name + ".bak").unlink(missing_ok=True)
    ran = tieredstore("verify", "--tier", tier.url, "--state", tier.state, "--output", "json")
    assert ran.code == 1
    assert [finding["kind"] for finding in ran.record["findings"]] == ["metadata-unreadable"]
    assert ran.record["messages"] == 22


def test_i01_a_good_backup_is_used_with_a_warning(tier: BuiltTier) -> None:
    path = tier.metadata.path
    path.with_name(path.name + ".bak").write_bytes(path.read_bytes())
    path.write_bytes(b"{")
    ran = tieredstore("ls", "--tier", tier.url, "--state", tier.state, "--output", "ndjson")
    assert (ran.code, len(ran.rows)) == (0, 3)
    assert ran.err.startswith("tieredstore: warning: ")
    assert ran.err.count("\n") == 1
    assert path.read_bytes() == b"{"


def test_unknown_names_come_with_near_ones(tier: BuiltTier) -> None:
    assert "Did you mean orders" in refuse("cat", "--tier", tier.url, "--topic", "order")
    assert "It has 0, 1" in refuse("cat", "--tier", tier.url, "--topic", "orders", "--queue", 7)
    assert BROKER in refuse("ls", "--tier", tier.url, "--broker", "broker-b")
    assert "cluster-a" in refuse("ls", "--tier", tier.url, "--cluster", "cluster-b")
    assert "no topic" in refuse("ls", "--tier", tier.url, "--topic", "x")


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "/etc", "x" * 300, "\udcff"])
def test_i02_hostile_names_lead_nowhere(tier: BuiltTier, name: str, tmp_path: Path) -> None:
    refuse("cat", "--tier", tier.url, "--topic", name)
    refuse("ls", "--tier", tier.url, "--broker", name)
    refuse("ls", "--tier", tier.url, "--cluster", name)
    refuse("query", "--tier", tier.url, "--topic", name, "--key", "k")
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    out = ["--tier", f"file://{tmp_path}/new/tier", "--state", tmp_path / "new" / "state"]
    before = sorted(tmp_path.rglob("*"))
    for names in (("--broker", name, "--cluster", "c"), ("--broker", "b", "--cluster", name)):
        ran = tieredstore("offload", store, *out, *names)
        one_line(ran)
        made = set(tmp_path.rglob("*")) - set(before)
        assert all(path.is_relative_to(tmp_path / "new") for path in made)


@pytest.mark.parametrize("text", ["", "tomorrow", "-2", "2026-13-01", "12:00", "1e9", "-2y"])
def test_times_that_are_none(tier: BuiltTier, text: str) -> None:
    for verb in ("cat", "query"):
        line = refuse(verb, "--tier", tier.url, *READING_VERBS[verb], "--since", text)
        assert repr(text) in line
        assert "-2h" in line


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["nothing"],
        ["ls", "--tier", "file:///x", "--ouput", "json"],
        ["cat", "--tier", "file:///x"],
        ["cat", "--tier", "file:///x", "--topic", "t", "--limit", "-1"],
        ["query", "--tier", "file:///x"],
        ["query", "--tier", "file:///x", "--key", "k"],
        ["query", "--tier", "file:///x", "--topic", "t", "--key", "k", "--msg-id", "i"],
        ["offload", "--tier", "file:///x", "--state", "y"],
        ["offload", "s", "--tier", "file:///x", "--state", "y", "--follow", "--dry-run"],
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(arguments: list[str]) -> None:
    line = refuse(*arguments)
    assert "--help" in line or "No such" in line


def log_segment(tier: BuiltTier, number: int) -> tuple[Path, int]:
    item = tier.stored["orders", 0][number]
    base = tier.stored["orders", 0][number - number % 5].offset
    segment = SegmentId(f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, base)
    return tier.path(segment), item.offset - base


@pytest.mark.parametrize("output", ["table", "json", "ndjson"])
def test_a_corrupt_record_in_the_middle_ends_cat_behind_the_good_ones(
    tier: BuiltTier, output: str
) -> None:
    path, at = log_segment(tier, 7)
    flip(path, at + 95)
    ran = tieredstore(
        "cat", "--tier", tier.url, "--topic", "orders", "--queue", 0, "--output", output
    )
    assert ran.code == 1
    line = one_line(ran)
    assert "queue offset 107" in line
    assert "COMMIT_LOG@" in line
    assert "verify" in line
    if output == "json":
        assert [row["queue_offset"] for row in ran.record] == [*range(100, 107)]
    if output == "ndjson":
        assert [row["queue_offset"] for row in ran.rows] == [*range(100, 107)]


def test_a_truncated_segment_ends_cat_with_its_name(tier: BuiltTier) -> None:
    path, at = log_segment(tier, 9)
    path.write_bytes(path.read_bytes()[: at + 20])
    ran = tieredstore("cat", "--tier", tier.url, "--topic", "orders", "--output", "ndjson")
    assert ran.code == 1
    assert "queue offset 109" in one_line(ran)
    ran = tieredstore("verify", "--tier", tier.url, "--output", "ndjson")
    assert ran.code == 1
    kinds = [row.get("kind") for row in ran.rows]
    assert {"segment-truncated", "record-missing"} <= set(kinds)
    assert ran.rows[-1]["record"] == "summary"
    assert ran.rows[-1]["messages"] == 21


def test_a_damaged_message_is_not_served_by_query(tier: BuiltTier) -> None:
    path, at = log_segment(tier, 7)
    flip(path, at + 95)
    ran = tieredstore("query", "--tier", tier.url, "--topic", "orders", "--key", "orders-0-7")
    assert (ran.code, ran.out) == (1, "")
    assert "body CRC" in ran.err


def test_a_broken_pipe_is_no_error(public_a: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tieredstore.cli.main", "cat", "--topic", "pub_multi"),
            *("--tier", f"file://{public_a / 'tiered'}", "--output", "ndjson"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"{")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_a_bug_is_one_line_and_exit_code_70(
    tier: BuiltTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("tieredstore.scan.opening.load_catalogue", fail)
    line = refuse("ls", "--tier", tier.url, code=70)
    assert "RuntimeError: two lines" in line


def test_permissions_are_named(tier: BuiltTier, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/tier/secret")

    monkeypatch.setattr("tieredstore.scan.opening.load_catalogue", refused)
    assert "/tier/secret: Permission denied" in refuse("ls", "--tier", tier.url, code=2)


def test_numbers_that_nothing_can_count_to_are_refused(tier: BuiltTier) -> None:
    cat = ("cat", "--tier", tier.url, "--topic", "orders")
    assert "is not in the range" in refuse(*cat, "--limit", 10**20)
    line = refuse(*cat, "--format", "{queue_id:>99999999999}")
    assert "--format" in line
    assert "expected a width below 10000" in line


def test_a_job_on_a_folder_whose_name_is_no_utf8_is_refused(
    tier: BuiltTier, tmp_path: Path
) -> None:
    to = f"{tmp_path}/a\udcff"
    line = refuse("export", "--tier", tier.url, "--format", "parquet", "--to", to)
    assert "a\\udcff" in line
    assert "expected a name in UTF-8" in line
    assert not Path(to).exists()


@pytest.mark.parametrize("stream", [1, 2])
def test_a_closed_stream_stops_no_command(tier: BuiltTier, stream: int) -> None:
    """A command works even if a standard stream is closed, because some services start commands
    with closed streams."""
    command = f"{sys.executable} -m tieredstore ls --tier {tier.url} {stream}>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("orders" in done.stdout) is (stream == 2)
