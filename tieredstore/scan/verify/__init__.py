"""Verification of a tier: checks every byte that can be checked by the tier's formats, and reports
all damage."""
