"""Decoding of many records of one buffer into columns."""
