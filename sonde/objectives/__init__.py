"""What is minimized: likelihoods and other learning signals, as named sums with counts."""
