"""Makes a report as one HTML page. The page has no external resources and is readable without its
script."""
