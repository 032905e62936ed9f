"""GiGL's names: ``hopstream.compat.gigl`` in place of ``gigl``."""
