"""Stores that wrap others: each is a layer, the innermost is the local one."""

from __future__ import annotations

from collections.abc import Iterator


def list_layers(store: object) -> Iterator[object]:
    """List a store and those that it wraps, the outermost first."""
    layer: object | None = store
    while layer is not None:
        yield layer
        layer = getattr(layer, "next_store", None)
