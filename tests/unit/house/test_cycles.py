"""Only the listed modules disable Python's cyclic garbage collector."""

from __future__ import annotations

import gc

import pytest

from tieredstore.server_process import without_cycle_search


def test_it_is_off_meanwhile_and_on_again_whatever_happens() -> None:
    assert gc.isenabled()

    def fail() -> None:
        assert not gc.isenabled()
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"), without_cycle_search():
        fail()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_so() -> None:
    gc.disable()
    try:
        with without_cycle_search():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
