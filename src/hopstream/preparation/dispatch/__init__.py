"""Writes a chunked graph of any size as a dataset; ``docs/guide-dispatch.md`` says how for users.

``dispatch_folder`` cuts the work so that it fits the memory. ``columns`` writes features of nodes, ``spill`` spills
edges in pieces and puts them in order. ``dispatch_job`` says which stage comes when.
"""
