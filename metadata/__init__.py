"""Metadata stores: which topics, queues and segments a tier has (`docs/formats/metadata.md`)."""
