"""A house of its own, put before orch's on PYTHONPATH: its one backend trains nothing."""

ORCH_BACKENDS = True
