"""Derive the library that trained a logged run, its release, and what its KL term optimises."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from orchestrator import plugins
from orchestrator.errors import SelectionError, did_you_mean
from orchestrator.imports.logged import LoggedKl, LoggedRun
from orchestrator.library.logged import Place

FEWEST = 2
"""Number of names, logged by one library only, that together identify it."""


class LibraryOrigin(NamedTuple):
    """A library and its release, each with the reason; None if nothing identifies it."""

    library: str | None
    library_because: str
    release: str | None = None
    release_because: str = ""


def origin_of(run: LoggedRun, named: str | None = None) -> LibraryOrigin:
    """Return the library that trained a run.

    It is `named` (`trl@1.16.0`), else the one that the settings or the metric names identify. Raise
    SelectionError for a library of which orch knows no metrics.
    """
    if named is not None:
        library, _, release = named.partition("@")
        if plugins.logged_metrics(library) is None:
            raise SelectionError(
                f"orch knows no metrics of '{library}'{did_you_mean(library, plugins.logging())} "
                f"(it knows those of {', '.join(plugins.logging())})"
            )
        if release:
            return LibraryOrigin(library, "as given", release, "as given")
        return LibraryOrigin(library, "as given", release_because=_NO_RELEASE)
    origin = _identified(run)
    return origin._replace(release_because=_NO_RELEASE) if origin.library else origin


_NO_RELEASE = "the log does not say it: --library NAME@VERSION does"


def _identified(run: LoggedRun) -> LibraryOrigin:
    """Return the library that the settings of a run, else its metric names, belong to alone."""
    tables = {name: plugins.logged_metrics(name) for name in plugins.logging()}
    owners = [n for n, table in tables.items() if table and table.owns(run.settings)]
    if len(owners) == 1:
        return LibraryOrigin(owners[0], "its settings have this library's names")
    logged = {name for row in run.rows for name in row.values}
    known = {n: {m for m in logged if table.rows(m)} for n, table in tables.items() if table}
    own = {
        n: names - set().union(*(k for o, k in known.items() if o != n))
        for n, names in known.items()
    }
    alone = [n for n, names in own.items() if len(names) >= FEWEST]
    if len(alone) == 1:
        some = ", ".join(sorted(own[alone[0]])[:3])
        return LibraryOrigin(alone[0], f"of all libraries it alone logs {some}")
    if not any(known.values()):
        return LibraryOrigin(
            None, "no library that orch knows logs these names: --library says which"
        )
    most = max(map(len, known.values()))
    fitting = [n for n, names in known.items() if len(names) == most]
    if len(fitting) == 1 and most >= FEWEST:
        return LibraryOrigin(fitting[0], "it knows more of the logged names than other libraries")
    return LibraryOrigin(None, f"its names fit {', '.join(fitting)}: --library says which")


def kl_of(
    library: str | None, release: str | None, settings: Mapping[str, Any], origin: str
) -> LoggedKl | None:
    """Return the KL of the settings that a run logged, as the audit reads it.

    Return None where they are too few, and where this installation has no audit.
    """
    try:
        from orchestrator.audit.logged_runs import logged_kl
    except ModuleNotFoundError:
        return None
    return logged_kl(library, release, settings, origin)


def place_of(kl: LoggedKl | None) -> Place | None:
    """Return where a run has its KL: in the reward or in the loss; None for both, none, unknown."""
    if kl is None:
        return None
    reward, loss = kl.in_reward.active, kl.in_loss.active
    if reward and loss is False:
        return "reward"
    return "loss" if loss and reward is False else None
