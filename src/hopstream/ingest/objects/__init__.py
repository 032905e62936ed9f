"""Makes graphs of objects of other libraries: PyG's, OGB's, SciPy's, NetworkX's."""
