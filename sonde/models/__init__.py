"""Networks built from the parts in nn, one file for each family, and the layouts of other libraries' checkpoints."""
