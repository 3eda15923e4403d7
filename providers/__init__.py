"""Segment providers: the backends of a tier. The configuration names the provider to load. Modules
outside of this package import none of them."""
