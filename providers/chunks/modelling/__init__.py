"""What a chunk log asks of an object store, by its own rules and without one."""
