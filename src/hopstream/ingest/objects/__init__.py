"""Makes graphs from objects of PyG, SciPy and NetworkX."""
