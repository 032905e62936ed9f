"""Names of ``gigl.env``."""
