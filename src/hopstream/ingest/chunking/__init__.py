"""Converts tables of raw ids to a chunked graph in bounded memory.

The conversion is a partitioned hash join. The raw ids of nodes and of edge ends are partitioned into buckets by hash.
The nodes of one bucket fit into memory, and the edge ends of the same bucket look up their keys there. The keys are
written back in the order of the edges. The modules of the steps describe the details.
"""
