"""Optional fast paths of a step, bit for bit the same: without this folder every run computes the same, only slower."""
