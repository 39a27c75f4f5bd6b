"""What measures ROLL: a probe of its KL functions."""
