"""What measures ms-swift: a probe of its KL functions."""
