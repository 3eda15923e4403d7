"""Segment providers: the backends of a tier. They are named in configuration, and imported by no
other module."""
