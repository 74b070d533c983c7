"""What lenses share: reading without a trace, small subjects, tokens, pictures."""
