"""Index files of the local store and of the tier."""
