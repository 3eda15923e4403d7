"""Deletion of expired messages from log, queues and index, and of the oldest ones if the disk is
full."""
