"""What a broker keeps in `config/`: topics, subscription groups, consumer offsets."""
