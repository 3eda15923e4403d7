"""Segments and objects in this process's memory. They are not durable."""

from tieredstore.providers.memory.provider import MemoryFileSegment, MemoryProvider

__all__ = ["MemoryFileSegment", "MemoryProvider"]
