"""Loads the stand-ins in each process of a launch, before the library is imported."""

import os
from importlib import import_module

if module := os.environ.get("ORCH_CPU"):
    import_module("orch_cpu_device").install()
    import_module(module).install()
