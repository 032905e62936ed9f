"""Writes a dataset with other parts, without what it was written from; ``docs/guide-reshard.md`` says how for users.

Keys are what old and new parts have in common: the rows of a stretch of keys are one stretch of each old part, and one
of each new part. So a task takes a stretch of keys, reads a stretch of each old part, puts the rows in the order of the
new parts, and writes a stretch of each: everything is read once and written once, and nothing is sorted. ``move``
moves rows, and ``reshard_job`` cuts links anew and says which stage comes when.
"""
