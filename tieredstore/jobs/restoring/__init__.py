"""`restore`: rebuild a broker's store directory from its tier alone, after the loss of its disk."""
