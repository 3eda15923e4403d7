"""From what was appended to the log to consume queues and index ("reput")."""
