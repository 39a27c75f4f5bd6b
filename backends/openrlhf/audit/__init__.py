"""The reader of anybody's launches of OpenRLHF, for `orch audit`."""
