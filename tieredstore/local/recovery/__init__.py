"""Recovery of a store when it is opened: owner, checkpoint, end of the log, and repair."""
