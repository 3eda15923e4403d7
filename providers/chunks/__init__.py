"""A tier as logs of immutable objects, over any ObjectClient (`docs/formats/chunk-log.md`)."""
