"""An estimator of our own."""

from orchestrator.estimators import EstimatorEntry

K4 = EstimatorEntry(
    name="k4",
    formula="(log r)^4",
    value=lambda x: x**4,
    slope=lambda x: 4 * x**3,
    is_reverse_kl=False,
    source="a test",
)
