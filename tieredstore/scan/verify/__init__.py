"""Verification of a tier: it checks every byte that its formats allow to check, and reports all
damage."""
