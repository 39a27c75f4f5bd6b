"""orch: what does this KL choice really do, in my library, at my beta, at my asynchrony?"""

from orchestrator import estimators


def _load_estimators() -> None:
    from orchestrator.plugins import load_estimators

    load_estimators()


# here, as every process that uses orch runs this file
estimators.TABLE.load_plugins = _load_estimators
