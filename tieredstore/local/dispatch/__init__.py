"""Dispatch of appended messages to consume queues and index ("reput")."""
