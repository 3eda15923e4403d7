"""Public test kits: contracts that every plugin must hold, and faults to try them with."""
