"""Segment providers: the backends of a tier. Nothing imports them; a configuration names them."""
