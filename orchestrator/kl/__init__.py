"""The laboratory: the objective whose gradient a KL configuration really is, with proof."""
