"""The reader of anybody's launches of Prime-RL, for `orch audit`."""
