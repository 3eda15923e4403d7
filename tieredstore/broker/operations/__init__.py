"""Operation of a broker: health, metrics, report at the start."""
