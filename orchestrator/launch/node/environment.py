"""The environment a library's programs run in: a virtual environment, lines of shell, an image."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.environments.lock import find_installed, root
from orchestrator.errors import EnvironmentFault
from orchestrator.records import LaunchPlan
from orchestrator.spec.site_options import EnvironmentEntry, NodeOptions, SecretFile

_ORCHS = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX")
"""Variables of orch's environment that must not reach a trainer in its own."""
_FOREIGN = ("RAY_ADDRESS", "RAY_TMPDIR", "ORCH_RANK_TOKEN")
"""Variables of another run, which would lead this one to its nodes."""

_SHELL = 'cd "$0" || exit 126\nexec "$@"'


@dataclass(frozen=True)
class TrainerEnvironment:
    """What a program of the library stands on. `record` says which, for the attempt's files."""

    record: Mapping[str, object]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the variables of the job."""
    entry: EnvironmentEntry | None = None
    foreign: bool = True
    """It is not orch's own environment, whose variables must then not reach it."""

    def variables(self, added: Mapping[str, str]) -> dict[str, str]:
        """All variables of a program: the job's, the environment's, and `added`."""
        dropped = _FOREIGN + (_ORCHS if self.foreign else ())
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {**kept, **self.env, **added}

    def command(
        self, argv: Sequence[str], cwd: Path, sees: Sequence[Path], passes: Sequence[str]
    ) -> list[str]:
        """argv inside the environment. An image sees the folders `sees`; `passes` are the names
        of the variables that enroot hands on (Apptainer hands on all)."""
        command = list(argv)
        if self.entry is not None and self.entry.image:
            command = self._in_image(self.entry, command, cwd, sees, passes)
        if self.entry is not None and self.entry.setup:
            command = ["bash", "-lc", self._script(self.entry.setup), "orch", *command]
        return command

    def _script(self, setup: Sequence[str]) -> str:
        """The lines, then the program. A login shell resets PATH, so it is extended afterwards."""
        first = self.env.get("ORCH_ENVIRONMENT_BIN")
        path = [f"export PATH={shlex.quote(first)}:$PATH"] if first else []
        return "\n".join(["set -e", *setup, *path, 'exec "$@"'])

    @staticmethod
    def _in_image(
        entry: EnvironmentEntry,
        argv: list[str],
        cwd: Path,
        sees: Sequence[Path],
        passes: Sequence[str],
    ) -> list[str]:
        binds = [
            *(f"{path}:{path}" for path in sees),
            *(b if ":" in b else f"{b}:{b}" for b in entry.binds),
        ]
        if str(entry.image).endswith(".sqsh"):
            mounts = [word for bind in binds for word in ("--mount", bind)]
            names = [word for name in passes for word in ("--env", name)]
            return [
                "enroot",
                "start",
                "--rw",
                *mounts,
                *names,
                str(entry.image),
                "sh",
                "-c",
                _SHELL,
                str(cwd),
                *argv,
            ]
        bound = [word for bind in binds for word in ("--bind", bind)]
        return ["apptainer", "exec", "--nv", "--pwd", str(cwd), *bound, str(entry.image), *argv]


def find_environment(library: str, version: str, options: NodeOptions) -> TrainerEnvironment | None:
    """Where a release is installed: as the site says, else as `orch env create` made it; None
    where neither knows it."""
    name = f"{library}@{version}"
    entry = options.environments.get(name) or options.environments.get(library)
    if entry is not None:
        return _declared(name, entry)
    within = Path(options.environments_dir).expanduser() if options.environments_dir else None
    made = find_installed(library, version, within=within)
    if made is not None:
        added = {"ORCH_ENVIRONMENT_BIN": str(made.bin), **made.variables(os.environ)}
        return TrainerEnvironment({"kind": "orch env", **made.record()}, added)
    plain = (within or root()) / f"{library}-{version}"
    if (plain / "bin" / "python").exists():
        return _declared(name, EnvironmentEntry(venv=str(plain)))
    return None


def environment_for(plan: LaunchPlan, options: NodeOptions) -> TrainerEnvironment:
    """The plan's environment; what PATH has, where nothing is known of one."""
    known = find_environment(plan.backend, plan.version, options)
    return known or TrainerEnvironment({"kind": "PATH"}, foreign=False)


def _declared(name: str, entry: EnvironmentEntry) -> TrainerEnvironment:
    record = {"kind": "site", "name": name, **entry.model_dump(exclude_defaults=True)}
    programs = None
    if entry.venv:
        programs = Path(entry.venv).expanduser() / "bin"
    elif entry.python:
        programs = Path(entry.python).expanduser().parent
    if programs is None:
        return TrainerEnvironment(record, entry=entry)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    added = {"PATH": path, "ORCH_ENVIRONMENT_BIN": str(programs), "PYTHONNOUSERSITE": "1"}
    if entry.venv:
        added["VIRTUAL_ENV"] = str(programs.parent)
    return TrainerEnvironment(record, added, entry)


def environment_fault(library: str, version: str, options: NodeOptions) -> str:
    """What to do where a release has no environment, or what is wrong with it; empty if it is
    there. Looks at this machine's file system."""
    ground = find_environment(library, version, options)
    name = f"{library}@{version}"
    if ground is None:
        return (
            f"no environment is known for {name}: `orch env create {name}` makes one, or say "
            f"where it is in site.options.environments['{name}']"
        )
    entry = ground.entry
    if entry is None:
        return ""
    if entry.image and "://" not in entry.image and not Path(entry.image).expanduser().exists():
        return f"the image {entry.image} of {name} is not there"
    programs = ground.env.get("ORCH_ENVIRONMENT_BIN")
    if programs and not any((Path(programs) / p).exists() for p in ("python", "python3")):
        return f"{programs} has no python; it is given for {name} in site.options.environments"
    return ""


# Secrets by reference: the site file names them, the node looks their values up.
#
# A value stands in no file of orch's, no log and no argument: only in the environment of processes.


def read_secrets(wanted: Mapping[str, SecretFile | None]) -> dict[str, str]:
    """Name -> value. Raises EnvironmentFault for all that are missing, without any value."""
    found, faults = {}, []
    for name, source in wanted.items():
        if source is None:
            if name in os.environ:
                found[name] = os.environ[name]
            else:
                faults.append(
                    f"{name} is not set here; export it in the shell that submits, or "
                    f"give a file in site.options.secrets.{name}"
                )
            continue
        path = Path(source.file).expanduser()
        try:
            found[name] = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is not text"
            faults.append(
                f"{name} cannot be read from {path}: {why} (site.options.secrets.{name}.file)"
            )
    if faults:
        raise EnvironmentFault("; ".join(faults))
    return found
