"""Verification of a tier: check every byte that the formats allow to check, and report all
damage."""
