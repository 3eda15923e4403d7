"""Ranges of up to 1 MiB are read through obstore where it is there (`docs/adr/0004-obstore.md`)."""
