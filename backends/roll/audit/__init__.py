"""ROLL, which orch reads and does not train with."""
