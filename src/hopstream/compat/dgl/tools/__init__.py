"""Scripts of DGL's folder ``tools`` that prepare a graph; run each with ``python -m``."""
