"""A replay: what real libraries logged, with planted numbers, at the scale of the paper."""
