"""Random histories of a broker. Its store, state and tier are exchanged for copies. An oracle has
the acknowledged messages."""
