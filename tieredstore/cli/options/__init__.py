"""Options shared by verbs, each declared once, and completion of their values."""
