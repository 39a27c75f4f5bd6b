"""orch: what does this KL choice really do, in my library, at my beta, at my asynchrony?"""

from typing import TYPE_CHECKING

from orchestrator import estimators

if TYPE_CHECKING:
    from orchestrator.analysis.results import load_results as load_results

__version__ = "0.1.0"


def _load_estimators() -> None:
    from orchestrator.plugins import load_estimators

    load_estimators()


estimators.load_plugins = _load_estimators  # here, as every process that uses orch runs this file


def __getattr__(name: str) -> object:
    """Return `orchestrator.load_results`, which is imported on first use to keep start-up short."""
    if name == "load_results":
        from orchestrator.analysis.results import load_results

        return load_results
    raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
