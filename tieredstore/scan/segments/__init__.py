"""What the files of a queue hold at their ends: last messages, store times, topic ids."""
