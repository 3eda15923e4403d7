"""Operation of a broker: health, metrics and start report."""
