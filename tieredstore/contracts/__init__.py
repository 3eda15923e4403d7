"""Protocols between the layers, and the types they exchange. This package contains no
implementations."""
