"""What measures slime: a probe of its KL functions."""
