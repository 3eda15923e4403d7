"""Random histories of a broker whose store, state and tier are exchanged for copies, with an oracle
of acknowledged messages."""
