"""The key index of the local store: its owner's side, and look-ups."""
