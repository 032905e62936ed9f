"""GraphLearn-for-PyTorch's names: ``hopstream.compat.glt`` in place of ``graphlearn_torch``."""
