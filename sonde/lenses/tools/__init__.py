"""What lenses share: read-only access to a model, small subjects, tokens, pictures."""
