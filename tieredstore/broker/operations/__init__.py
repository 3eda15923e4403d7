"""Operation of a broker: health, metrics, start report."""
