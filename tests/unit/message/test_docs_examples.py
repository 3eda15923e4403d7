"""The examples in docs/formats were written by Java."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.paths import ROOT
from tieredstore.message.crc import stored_property_crc
from tieredstore.message.hashes import java_string_hash
from tieredstore.message.hosts import parse_offset_message_id
from tieredstore.message.index import tiered as tiered_index
from tieredstore.message.record import decode_record

FORMATS = ROOT / "docs" / "formats"


def examples(page: str) -> list[bytes]:
    """Return the hex blocks of a page. Two spaces separate the hex digits from a comment."""
    found: list[bytes] = []
    for block in re.findall(
        r"^```\n(.*?)^```", (FORMATS / page).read_text(), re.DOTALL | re.MULTILINE
    ):
        lines = [re.split(r"  ", line.strip())[0].replace(" ", "") for line in block.splitlines()]
        digits = "".join(line for line in lines if re.fullmatch(r"[0-9a-f]+", line))
        if digits and len(digits) % 2 == 0:
            found.append(bytes.fromhex(digits))
    return found


@pytest.fixture
def first_log(golden: Path) -> bytes:
    return (golden / "local-plain/commitlog" / "0".zfill(20)).read_bytes()


def test_record(first_log: bytes) -> None:
    assert examples("record.md") == [first_log[:164]]


def test_record_with_property_crc(golden: Path) -> None:
    log = (golden / "local-propcrc/commitlog" / "0".zfill(20)).read_bytes()
    message = decode_record(log)
    assert message.size == 184
    assert stored_property_crc(log, 0, message.size) == 1016160514
    tail = log[message.size - 20 : message.size].hex()
    page = (FORMATS / "record.md").read_text().replace(" ", "").replace("\n", "")
    assert f"`{tail}`" in page


def test_consume_queue(golden: Path) -> None:
    unit, batch_unit = examples("consume-queue.md")
    units = next((golden / "java-5.5.0/tier").rglob("CONSUME_QUEUE/*")).read_bytes()
    assert unit == units[40:60]
    batch = golden / "local-plain/batchconsumequeue/BT/0" / "0".zfill(20)
    assert batch_unit == batch.read_bytes()[:46]


def test_local_index(golden: Path) -> None:
    [example] = examples("local-index.md")
    path = min((golden / "local-plain/index").iterdir())
    assert example == path.read_bytes()[: 40 + 40 + 5 * 20]


def test_tiered_index(golden: Path) -> None:
    unsealed, compacted = examples("tiered-index.md")
    file = (golden / "java-5.5.0/unsealed.idx").read_bytes()
    assert unsealed == file[:60] + file[92 : 92 + 5 * 32]
    assert compacted == next((golden / "java-5.5.0/tier").rglob("INDEX/*")).read_bytes()
    assert compacted == b"".join(tiered_index.compact(file, 4))


def test_tier_layout(golden: Path) -> None:
    [example] = examples("tier-layout.md")
    tier = golden / "java-5.5.0/tier"
    page = (FORMATS / "tier-layout.md").read_text()
    second = next(tier.rglob("COMMIT_LOG/*270"))
    assert example == second.read_bytes()[:36]
    for path in (second, *tier.rglob("CONSUME_QUEUE/*"), *tier.rglob("INDEX/*")):
        assert f"\n{path.relative_to(tier).as_posix()}\n" in page


def test_checkpoint(golden: Path) -> None:
    [example] = examples("checkpoint.md")
    assert (golden / "local-plain/checkpoint").read_bytes() == example + bytes(4096 - 48)


def test_metadata(golden: Path) -> None:
    file = (golden / "java-5.5.0/config/tieredStoreMetadata.json").read_text()
    page = (FORMATS / "metadata.md").read_text()
    [example] = re.findall(r"^```\n(0:\{.*?)\n```", page, re.DOTALL | re.MULTILINE)
    assert re.sub(r"\s", "", example) in re.sub(r"\s", "", file)


def test_ids_and_hashes() -> None:
    page = (FORMATS / "ids-and-hashes.md").read_text().replace("−", "-")
    rows = re.findall(r"^\| `(.*)` \| (-?\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for text, value in rows:
        assert java_string_hash(text) == int(value)
    [message_id] = re.findall(r"^`([0-9A-F]{32})`", page, re.MULTILINE)
    assert parse_offset_message_id(message_id) == ("127.0.0.1", 10911, 164)
