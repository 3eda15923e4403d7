"""Many records of one buffer at once, as columns."""
