"""Messages that the commit log has and no consume queue has: the search for them, and their
units."""
