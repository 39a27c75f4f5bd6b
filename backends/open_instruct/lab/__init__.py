"""What measures open-instruct: a probe of its KL functions."""
