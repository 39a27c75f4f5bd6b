"""orch: what does this KL choice really do, in my library, at my beta, at my asynchrony?"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.analysis.results import load_results as load_results

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`orchestrator.load_results`, imported when it is asked for: start-up is a feature."""
    if name == "load_results":
        from orchestrator.analysis.results import load_results

        return load_results
    raise AttributeError(f"module 'orchestrator' has no attribute {name!r}")
