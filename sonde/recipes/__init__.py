"""Experiments that run as they are, one file each; the only place for hyperparameters."""
