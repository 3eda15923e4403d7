"""Errors caused by peers are logged at most once per minute."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tieredstore.broker import peer_warnings
from tieredstore.broker.peer_warnings import PeerWarnings


def test_s37_many_warnings_are_counted_and_summed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_warnings, "PERIOD_S", 0.2)

    async def run() -> None:
        peers = PeerWarnings()
        for number in range(1_000):
            peers.note("connections closed", f"10.0.0.{number}: no frame")
        for _ in range(10):
            peers.note("failed requests", "request 10 failed", ValueError("x" * 10_000))
        assert len(caplog.records) == 1
        await asyncio.sleep(0.3)
        assert len(caplog.records) == 2
        await asyncio.sleep(0.3)  # nothing further came: the next one is logged at once
        assert len(caplog.records) == 2
        peers.note("connections closed", "10.0.0.1: again")
        assert len(caplog.records) == 3

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    first, summed, again = (record.getMessage() for record in caplog.records)
    assert first == "10.0.0.0: no frame"
    assert "999 connections closed (the last: 10.0.0.999: no frame)" in summed
    assert "10 failed requests (the last: request 10 failed)" in summed
    assert len(summed) < 1_000
    assert again == "10.0.0.1: again"
