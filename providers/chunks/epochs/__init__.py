"""Who may write: claiming, holding and losing the writer epoch of a broker."""
