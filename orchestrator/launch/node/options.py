"""What a site says of its nodes: environments of the trainers, variables, patience.

These are fields of `site.options`; the launcher's own (partition, account, ...) stand beside them.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from orchestrator.errors import EnvironmentFault
from orchestrator.sentences import sentence
from orchestrator.settings import Frozen, NonNegativeFloat, PositiveFloat, PositiveInt

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class EnvironmentEntry(Frozen):
    """Where one release of a library is installed: an environment, or lines of shell, or an image.

    `setup` lines run first, in a login shell (`module load cuda/12.4`).
    """

    venv: str | None = None
    """A virtual environment: the folder that holds bin/python."""
    python: str | None = None
    """A Python whose folder has the library's programs, where it is no virtual environment."""
    image: str | None = None
    """An Apptainer image (.sif, docker://...) or an enroot image (.sqsh)."""
    binds: tuple[str, ...] = Field(default=(), strict=False)
    """Folders an image sees, beside the runs folder: `/data` or `/host:/inside`."""
    setup: tuple[str, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _one_place(self) -> "EnvironmentEntry":
        given = [name for name in ("venv", "python", "image") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"an environment is one of venv, python, image; got {given}")
        if not given and not self.setup:
            raise ValueError("an environment needs venv, python, image or setup")
        return self


class SecretFile(Frozen):
    file: str


class NodeOptions(Frozen):
    """The part of `site.options` that the node's side reads."""

    environments: dict[str, EnvironmentEntry] = Field(default_factory=dict)
    """`verl@0.9.1`, or `verl` for all its releases."""
    environments_dir: str | None = None
    """Holds <library>-<version>/; None: where `orch env create` puts them."""
    env: dict[VariableName, str] = Field(default_factory=dict)
    """Exported on every node before anything starts. Not for secrets: it is kept in files."""
    secrets: dict[VariableName, SecretFile | None] = Field(default_factory=dict)
    """Names only: a variable of the submitting shell, or a file that the node reads."""
    hung_after_minutes: NonNegativeFloat = 60.0
    """A trainer that writes nothing for so long is ended; 0: never."""
    start_minutes: PositiveFloat = 10.0
    """How long the nodes may take to come together."""
    network_interface: str | None = None
    """For Ray, NCCL and Gloo, where a node has several (`ib0`)."""
    scratch_dir: str | None = None
    """A folder of each node's own for Ray's sockets; None: $SLURM_TMPDIR, $TMPDIR or /tmp."""
    ray_cpus_per_node: PositiveInt | None = None
    """What Ray may count on; None: the job's CPUs, and at least 4 a GPU and 4 more."""
    ray_object_store_gib: PositiveFloat | None = None
    """None: Ray's own choice."""

    @model_validator(mode="before")
    @classmethod
    def _names_alone(cls, plain: Any) -> Any:
        if isinstance(plain, Mapping) and isinstance(plain.get("secrets"), list | tuple):
            return {**plain, "secrets": dict.fromkeys(plain["secrets"])}
        return plain


def node_options(options: Mapping[str, object]) -> NodeOptions:
    """Reads those fields and leaves the others. Raises EnvironmentFault with every fault."""
    mine = {name: options[name] for name in NodeOptions.model_fields if name in options}
    try:
        return NodeOptions.model_validate(mine)
    except ValidationError as error:
        told = []
        for each in error.errors():
            at = ".".join(map(str, each["loc"]))
            told.append(f"  {sentence(each, f'site.options.{at}')}  @ $.site.options.{at}")
        raise EnvironmentFault("\n".join(["the site cannot be used", *told])) from error
