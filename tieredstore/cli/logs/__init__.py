"""What is said on standard error, from which level on, and how a line looks."""
