"""What measures AReaL: a probe of its KL functions."""
