"""The broker's part of `scripts/demo`."""

from __future__ import annotations

from pathlib import Path

from scripts.demo_broker import MESSAGES, play


def test_what_is_sent_is_consumed_and_replayed_from_the_tier(tmp_path: Path) -> None:
    played = play(tmp_path)
    assert played.sent == played.consumed == played.uploaded == played.replayed == MESSAGES
