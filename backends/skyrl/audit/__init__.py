"""The reader of anybody's launches of SkyRL, for `orch audit`."""
