"""Writer epoch of a broker: claim, ownership and loss."""
