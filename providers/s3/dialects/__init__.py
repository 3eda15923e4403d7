"""Conditional create in the dialects of object store vendors."""
