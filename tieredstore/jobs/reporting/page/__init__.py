"""A report as one HTML page without external resources, readable without its script."""
