"""What everything else speaks of: Batch, Terms, Stream, Recipe, Reading, options, errors, seeds, and the registry of plug-ins."""
