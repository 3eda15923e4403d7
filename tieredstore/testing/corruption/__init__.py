"""Planted damage in a copy of a tier, to test damage detection."""
