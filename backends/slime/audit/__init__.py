"""slime and its fork miles, which orch reads and does not train with."""
