"""Who is connected: producers, consumers by group, locks of orderly consumers."""
