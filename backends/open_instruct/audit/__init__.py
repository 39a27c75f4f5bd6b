"""open-instruct, which orch reads and does not train with."""
