"""Key index of the local store: appends by the owner and lookups."""
