"""Messages for output: selection, order and rows."""
