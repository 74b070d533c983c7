"""Layers: tensors in, tensors out, with plain constructor arguments."""
