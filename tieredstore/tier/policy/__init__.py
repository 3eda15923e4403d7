"""Settings of an operator for a tier: its topics, and the rate at which it is used."""
