"""The fields of a spec file; `orch schema` prints them."""

from typing import Any

from pydantic import Field

from orchestrator.settings import Frozen, Name, NonNegativeInt

Seeds = list[NonNegativeInt]
Fields = dict[str, Any]
"""Settings, resources and cadence, nested or dotted, any part of them."""


class StudyFile(Frozen):
    """A named sub-grid: one figure, one question."""

    title: str = ""
    """The title in the report."""
    figure: str = ""
    """The figure of the paper it repeats."""
    recipe: str | Fields | None = None
    """Instead of the spec's recipe: an entry of recipe/, or its content."""
    model: str | Fields | None = None
    """Instead of the spec's model."""
    data: str | Fields | None = None
    """Instead of the spec's data."""
    backend: str | Fields | None = None
    """`verl`, `verl@0.9.1`."""
    base: Fields = Field(default_factory=dict)
    """Over the recipe and over the spec's own base."""
    axes: Fields = Field(default_factory=dict)
    """The values that vary; see orchestrator/spec/expand."""
    exclude: list[Fields] = Field(default_factory=list)
    """Rows for which all of an entry holds are left out."""
    include: list[Fields] = Field(default_factory=list)
    """Further cells: fields over the base."""
    seeds: Seeds | None = None
    """Instead of the spec's seeds."""


class SpecFile(Frozen):
    """One experiment."""

    name: Name
    """Names the folder of runs and the MLflow experiment."""
    question: str = ""
    """The question that the experiment answers."""
    description: str = ""
    """For readers of the report."""
    seeds: Seeds = Field(default_factory=lambda: [0])
    """Every cell is trained once with each."""
    recipe: str | Fields | None = None
    """Settings all studies begin with: an entry of recipe/, or its content."""
    model: str | Fields | None = None
    """An entry of model/, or its content."""
    data: str | Fields | None = None
    """An entry of data/, or its content."""
    backend: str | Fields | None = None
    """The library that trains: `verl`, `verl@0.9.1`."""
    base: Fields = Field(default_factory=dict)
    """Over the recipe: settings, resources and cadence that all cells share."""
    studies: dict[Name, StudyFile] = Field(min_length=1)
    """Study name -> sub-grid."""
    claims: dict[Name, str] = Field(default_factory=dict)
    """Name -> statement, in the grammar of orchestrator/spec/claims.py."""
    evaluation: str | Fields | None = None
    """The evaluations of checkpoints: an entry of evaluation/, or its content."""
    sampling: str | Fields | None = None
    """The sampling of evaluations: an entry of sampling/, or its content."""
    published: str | Fields | None = None
    """Numbers to set ours beside: an entry of published/, or its content."""
    site: str | Fields | None = None
    """The place where cells run: an entry of site/, or its content."""
    tune: Fields | None = None
    """The values that a search varies, as they are written."""
