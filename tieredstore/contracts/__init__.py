"""Protocols between the layers, and the types that they exchange. This package contains no
implementations."""
