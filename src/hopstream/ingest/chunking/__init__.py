"""Makes a chunked graph of tables of raw ids in bounded memory.

Raw ids are dealt out to buckets by their hash, nodes and ends of edges alike, so that each bucket's nodes fit into
memory and its ends find their keys there. Keys go back to where their edges were; see the modules of the steps.
"""
