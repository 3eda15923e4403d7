"""Uploads: which queues, when, by how many threads, and one visit to one queue."""
