"""Writes a chunked graph of any size as a dataset; ``docs/guide-dispatch.md`` says how for users.

``dispatch_spec`` cuts the work so that it fits the memory. ``columns`` and ``ragged`` write features of nodes,
``spill`` spills edges in pieces, ``finish`` puts them in order. ``dispatch_job`` says which stage comes when.
"""
