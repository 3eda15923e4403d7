"""Messages on their way out: filters, long polling."""
