"""Metadata stores: the topics, queues and segments of a tier (`docs/formats/metadata.md`)."""
