"""`scripts/demo`: what the project does, shown by its own commands."""
