"""Random tests of a broker whose store, state and tier are replaced by older copies. An oracle
keeps the acknowledged messages."""
