"""Connected clients: producers, consumers by group, and the queue locks of orderly consumers."""
