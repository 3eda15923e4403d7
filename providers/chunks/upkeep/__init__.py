"""Maintenance of segments: merging, sealing, deletion of garbage."""
