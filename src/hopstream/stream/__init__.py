"""Servers that sample for many trainers at once."""
