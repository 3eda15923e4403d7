"""Verbs that mend, delete and tidy up by hand."""
