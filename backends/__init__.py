"""One folder a library. orchestrator.registry finds them by this marker."""

ORCH_BACKENDS = True
