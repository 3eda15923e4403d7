"""Segments and objects in this process's memory: nothing of them is durable."""

from tieredstore.providers.memory.provider import MemoryFileSegment, MemoryProvider

__all__ = ["MemoryFileSegment", "MemoryProvider"]
