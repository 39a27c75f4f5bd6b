"""orch: what does this KL choice really do, in my library, at my beta, at my asynchrony?"""

from orchestrator import estimators
from orchestrator.losses import table as losses


def _load_estimators() -> None:
    from orchestrator.plugins import load_estimators

    load_estimators()


def _load_policy_losses() -> None:
    from orchestrator.plugins import load_policy_losses

    load_policy_losses()


# here, as every process that uses orch runs this file
losses.POLICY_LOSSES.load_plugins = _load_policy_losses
estimators.TABLE.load_plugins = _load_estimators
