"""The scripts of DGL's folder ``tools`` that prepare a graph; ``python -m`` runs each."""
