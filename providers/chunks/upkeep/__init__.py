"""Maintenance of segments besides appending: merging, sealing, garbage."""
