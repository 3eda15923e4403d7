"""Lines on standard error: levels and formats."""
