"""What tells how the command is used: examples, manual, completion, what may have been meant."""
