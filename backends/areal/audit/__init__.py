"""AReaL, which orch reads and does not train with."""
