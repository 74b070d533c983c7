"""What `import sonde` offers: train, open_run, Run, sweep.  The only folder that sees engine, lenses and report together."""
