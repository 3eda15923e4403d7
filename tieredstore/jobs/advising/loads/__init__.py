"""What came to the queues of a broker, and who read it."""
