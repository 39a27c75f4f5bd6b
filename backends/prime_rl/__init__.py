"""Prime-RL 0.8.0 and 0.5.0: asynchronous RL, with orch's loss in the library's documented hooks."""

from orchestrator.library.protocol import of_modules

BACKEND = of_modules(__name__, title="Prime-RL")
