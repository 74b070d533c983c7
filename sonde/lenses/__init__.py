"""Read-only views into a model: each lens turns a model, a batch and a run into a Reading."""
