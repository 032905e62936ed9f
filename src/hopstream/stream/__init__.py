"""Sampling servers: make batches for many trainers at once."""
