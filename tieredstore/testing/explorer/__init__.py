"""An exhaustive explorer of processes that share one object store (`docs/testing.md`).

Each process runs the real code of a chunk log; the explorer owns the wire between the processes
and the store, tries every order in which requests can take effect, and checks the promises after
every step.
"""
