"""Report as one HTML page without external resources. It is readable without its script."""
