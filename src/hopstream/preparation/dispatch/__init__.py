"""Writes a chunked graph of any size as a dataset; ``docs/large-graphs.md`` is the users' guide.

``dispatch_folder`` divides the work so that it fits the memory. ``columns`` writes features of nodes. ``spill`` spills
edges in pieces and sorts them. ``dispatch_job`` runs the stages in order.
"""
