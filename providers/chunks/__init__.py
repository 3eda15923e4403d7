"""A tier stored as chunk logs: logs of immutable objects, over any ObjectClient
(`docs/formats/chunk-log.md`)."""
