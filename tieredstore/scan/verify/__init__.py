"""Verification of a tier: checks every byte that the tier's formats allow to check, and reports all
damage."""
