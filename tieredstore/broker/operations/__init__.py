"""The broker in an operator's hands: health, metrics, the report at the start."""
