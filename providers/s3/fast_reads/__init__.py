"""Reads of ranges up to 1 MiB through obstore, if it is installed (`docs/adr/0004-obstore.md`)."""
