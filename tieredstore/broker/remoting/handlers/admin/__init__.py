"""What operators ask of a broker, mostly by mqadmin."""
