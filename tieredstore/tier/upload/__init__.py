"""Uploads: choice of queues, times, threads, and the upload rounds of a queue."""
