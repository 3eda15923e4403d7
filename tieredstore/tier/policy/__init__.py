"""What an operator decides of a tier: which topics are in it, and at which speed it is used."""
