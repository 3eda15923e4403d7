"""State of a broker in `config/`: topics, subscription groups, consumer offsets."""
