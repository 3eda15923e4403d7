"""Messages taken for a while: invisible time, acknowledgement, attempts, FIFO."""
