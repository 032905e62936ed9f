"""Reads tables of raw ids in CSV, Parquet and TFRecord files, and the files that describe them."""
