"""What the gradient of a KL configuration really is, with proof."""
