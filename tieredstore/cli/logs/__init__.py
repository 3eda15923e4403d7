"""Lines on standard error: their levels and their format."""
