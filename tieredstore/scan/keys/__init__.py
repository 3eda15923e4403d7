"""Search for messages by key, in the index files and in messages that are not indexed."""
