"""How does a dataset become one of other parts, without going back to what it was written from?

``docs/guide-reshard.md`` says it for users. Keys are what old and new parts have in common: the rows of a stretch of
keys are one stretch of each old part, and one of each new part. So a task takes a stretch of keys, reads a stretch of
each old part, puts the rows in the order of the new parts, and writes a stretch of each: everything is read once and
written once, and nothing is sorted. What old parts hold is asked of ``rows`` alone; nodes are numbered (``number``),
items are counted (``measure``), rows are moved (``move``), links are cut anew (``links``), and ``run`` puts the stages
together.
"""
