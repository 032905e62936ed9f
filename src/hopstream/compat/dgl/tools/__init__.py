"""Which scripts of DGL's folder ``tools`` prepare a graph, and what are they here? ``python -m`` runs each."""
