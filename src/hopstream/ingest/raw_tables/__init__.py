"""Reads tables of raw ids: CSV, Parquet and TFRecord files, and what describes them."""
