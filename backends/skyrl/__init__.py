"""SkyRL (NovaSky): cells as launches of its trainer, through its own overrides."""

from orchestrator.library.protocol import of_modules

BACKEND = of_modules(__name__, title="SkyRL")
