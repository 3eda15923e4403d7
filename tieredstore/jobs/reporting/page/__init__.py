"""A report as one HTML page: nothing from elsewhere, a table beside each chart, readable without
its script."""
