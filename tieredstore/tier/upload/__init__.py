"""Uploads: which queues are uploaded, when, by which threads, and the upload rounds of a queue."""
