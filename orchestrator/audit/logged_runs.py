"""The KL of a run that somebody's logger recorded, read out of its settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator import plugins
from orchestrator.audit.pipeline import judged
from orchestrator.audit.render import headline
from orchestrator.errors import OrchError
from orchestrator.imports.logged import LoggedKl


def logged_kl(
    library: str | None, release: str | None, settings: Mapping[str, Any], origin: str
) -> LoggedKl | None:
    """Return the KL of the settings that a run logged; None where they are too few."""
    table = plugins.logged_metrics(library) if library else None
    if library is None or table is None or table.launch is None or not settings:
        return None
    launch = table.launch(settings)
    if launch is None:
        return None
    if release:
        launch = replace(launch, versions={library: f"{release} the imported run"})
    try:
        finding = judged(launch, origin, library)
    except OrchError:
        return None
    if finding is None:
        return None
    return LoggedKl(
        finding.in_reward,
        finding.in_loss,
        headline(finding),
        finding.verdict,
        finding.confidence,
        tuple(finding.assumes),
        tuple(each.text for each in finding.contradictions),
        finding.why,
        finding.moving_reference,
    )
