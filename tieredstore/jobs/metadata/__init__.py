"""Rebuild of the metadata of one broker's part of a tier from the tier alone. Tasks read the ends
of segments (`queues`) and the index (`index`). The driver derives topic ids (`topic_ids`) and
tables, and writes the file in one step (`state_files`)."""
