"""Receiving messages: invisible times, acknowledgements, delivery attempts and FIFO order."""
