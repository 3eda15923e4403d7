"""Messages for output: selection, order, rows."""
