"""`scripts/demo`: a demonstration of the project with the project's own commands."""
