"""Transforms of columns of tables: fitted in one pass, applied by pieces, saved as JSON."""
