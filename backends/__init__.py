"""One folder a library. orchestrator.plugins finds them by this marker."""

ORCH_BACKENDS = True
