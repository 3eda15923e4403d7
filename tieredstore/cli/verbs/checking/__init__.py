"""Verbs that look at a tier, or a place for one: what is wrong, what it costs, what suits."""
