"""Contract kits for segment providers."""
