"""Options that verbs share, each declared once, and completion of their values."""
