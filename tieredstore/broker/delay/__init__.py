"""Messages that are delivered later: delay levels and timer messages."""
