"""Damage for a copy of a tier, to test its detection."""
