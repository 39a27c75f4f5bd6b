"""OpenRLHF: flags of `openrlhf.cli.train_ppo_ray`, by release. README.md lists the differences."""

from orchestrator.library.protocol import of_modules

BACKEND = of_modules(__name__, title="OpenRLHF")
