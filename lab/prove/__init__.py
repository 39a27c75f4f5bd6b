"""Compare a library's training with the prediction of its dialect, on a run's own rollouts."""
