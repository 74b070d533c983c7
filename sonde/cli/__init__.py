"""The `sonde` command: names on the command line, loaded on demand."""
