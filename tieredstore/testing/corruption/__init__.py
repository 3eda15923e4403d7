"""Plants damage in a copy of a tier, so that one can see whether it is found."""
