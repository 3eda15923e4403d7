"""Index files for a tier that lost them, or has many small ones.

Both jobs go the same way: tasks gather *rows* (one a key of a message) and leave them, by store
time, in a staging place; other tasks make one index file each of their share of all rows; the
driver puts the files into the tier and removes those that they replace.
"""
