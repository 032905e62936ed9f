"""Kernels: all loops over many nodes or edges, compiled by numba."""
