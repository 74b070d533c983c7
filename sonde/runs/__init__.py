"""The run directory: layout, rows, checkpoints, listing.  Standard library only: no torch, no NumPy."""
