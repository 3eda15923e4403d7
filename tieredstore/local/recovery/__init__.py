"""Recovery of a store when it is opened: its owner, its checkpoint, the end of its log, and its
repair."""
