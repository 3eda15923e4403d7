"""Checks every byte of a tier that its formats let one check, and reports all damage."""
