"""TRL: its scripts `grpo` and `rloo`, by release. README.md lists the differences."""

from orchestrator.library.protocol import of_modules

BACKEND = of_modules(__name__, title="TRL")
