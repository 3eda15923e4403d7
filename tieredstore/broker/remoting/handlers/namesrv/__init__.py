"""What a name server answers."""
