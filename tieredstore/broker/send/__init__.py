"""Messages on their way in: checks, topics made on the way, retries and dead letters."""
