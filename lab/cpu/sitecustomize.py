"""Loads the stand-ins, and the hook that writes rollouts, in each process of a launch, before the
library is imported."""

import os
from importlib import import_module
from pathlib import Path

if module := os.environ.get("ORCH_CPU"):
    import_module("orch_cpu_device").install()
    import_module(module).install()
if folder := os.environ.get("ORCH_ROLLOUT_DUMP"):
    import_module("orch_rollout_hook").install(Path(folder))
