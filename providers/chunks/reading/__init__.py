"""Ranged reads of a chunk log: blocks, bounded caches, hedged requests."""
