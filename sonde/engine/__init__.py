"""Training: one loop, its strategies on several processes, checkpoints and resuming."""
