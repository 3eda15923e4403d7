"""Work over a whole tier, cut into tasks that run here or on a cluster.

A job is a function over a `JobRun`: it plans, has its tasks done by a `Runner`, and commits once.
What was done is kept in a journal, so that a job that was killed goes on where it was.
"""
