"""Writes a dataset with other parts, without its source; see ``docs/datasets.md`` for users.

Keys are the same in old and new parts. The rows of a range of keys are contiguous in each old part and in each new
part. So a task takes a range of keys, reads one range of each old part, reorders the rows, and writes one range of each
new part. Everything is read once and written once, and nothing is sorted. ``move`` moves rows; ``reshard_job`` slices
links and runs the stages in order.
"""
