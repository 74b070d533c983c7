"""From files and generators to sources, streams and readers: images, tables, text, synthetic tasks."""
