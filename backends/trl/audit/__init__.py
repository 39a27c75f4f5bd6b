"""The reader of anybody's launches of TRL, for `orch audit`."""
