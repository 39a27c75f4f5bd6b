"""The reader of anybody's launches of verl, for `orch audit`."""
