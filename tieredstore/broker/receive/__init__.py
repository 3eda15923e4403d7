"""Receiving of messages: invisible time, acknowledgement, attempts, FIFO."""
