"""What measures NeMo-RL: a probe of its KL functions."""
