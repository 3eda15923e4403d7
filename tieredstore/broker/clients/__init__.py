"""Connected clients: producers, consumers by group, locks of orderly consumers."""
