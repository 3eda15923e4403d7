"""Records, in the tier, of the deleted generations of topics."""
