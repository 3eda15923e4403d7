"""Options that verbs share, each declared once."""
