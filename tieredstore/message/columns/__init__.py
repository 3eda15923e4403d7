"""Decodes many records of one buffer into columns."""
