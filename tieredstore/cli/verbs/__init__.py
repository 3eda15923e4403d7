"""Verbs of the command line. The module of a verb defines its options, calls the layers below, and
prints the result."""
