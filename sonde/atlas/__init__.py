"""The lecture notes as running, checked exhibits: one file for each chapter."""
