"""Optimizers that torch lacks, schedules of the learning rate, initialization."""
