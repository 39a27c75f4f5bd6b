"""The environment of a library's programs (virtual environment, shell lines, image) and secrets."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.environments.lock import find_installed, root
from orchestrator.errors import EnvironmentFault
from orchestrator.launch.node.process_group import container_step
from orchestrator.library import loggers
from orchestrator.records import LaunchPlan
from orchestrator.spec.site_options import EnvironmentEntry, NodeOptions, SecretFile

_OWN_VARIABLES = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX")
"""Variables of orch's environment that must not reach a trainer in its own."""
_RUN_VARIABLES = ("RAY_ADDRESS", "RAY_TMPDIR", "ORCH_RANK_TOKEN")
"""Variables of another run, which would lead this one to its nodes."""

# $0 is the first word after the script: the folder.
_SHELL = 'cd "$0" || exit 126\nexec "$@"'


@dataclass(frozen=True)
class TrainerEnvironment:
    """The Python environment of a launch. `record` describes it in the attempt's files."""

    record: Mapping[str, object]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the variables of the job."""
    entry: EnvironmentEntry | None = None
    foreign: bool = True
    """True if it is not orch's own environment. Then orch's variables must not reach it."""

    def variables(self, added: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a program: the job's, the environment's, and `added`."""
        dropped = _RUN_VARIABLES + (_OWN_VARIABLES if self.foreign else ())
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {**kept, **self.env, **added}

    def command(
        self,
        argv: Sequence[str],
        cwd: Path,
        visible: Sequence[Path],
        passes: Sequence[str],
        node: str | None = None,
    ) -> list[str]:
        """Return argv inside the environment.

        visible: folders that an image must see. passes: names of the variables that enroot and
        pyxis pass on; Apptainer passes on all. node: the node on which it will run, for pyxis;
        None: this one. Raise EnvironmentFault for a folder that cannot be mounted into an image.
        """
        command = list(argv)
        if self.entry is not None and self.entry.image:
            command = self._in_image(self.entry, command, cwd, visible, passes, node)
        if self.entry is not None and self.entry.setup:
            command = ["bash", "-lc", self._script(self.entry.setup), "orch", *command]
        return command

    def _script(self, setup: Sequence[str]) -> str:
        """Return the setup lines, then the program. A login shell resets PATH: extend it last."""
        first = self.env.get("ORCH_ENVIRONMENT_BIN")
        path = [f"export PATH={shlex.quote(first)}:$PATH"] if first else []
        return "\n".join(["set -e", *setup, *path, 'exec "$@"'])

    @staticmethod
    def _in_image(
        entry: EnvironmentEntry,
        argv: list[str],
        cwd: Path,
        visible: Sequence[Path],
        passes: Sequence[str],
        node: str | None,
    ) -> list[str]:
        image = str(entry.image)
        image = str(Path(image).expanduser()) if image.startswith("~") else image
        if bad := next((path for path in (cwd, *visible) if set(",:") & set(str(path))), None):
            raise EnvironmentFault(
                f"the image {image} cannot be given the folder {bad}: ',' and ':' separate what is "
                "mounted; choose another site.runs_dir"
            )
        binds = [
            *(f"{path}:{path}" for path in visible),
            *(b if ":" in b else f"{b}:{b}" for b in entry.binds),
        ]
        if entry.container == "pyxis":
            options = [f"--container-image={image}", f"--container-workdir={cwd}"]
            options += [f"--container-mounts={','.join(binds)}"] if binds else []
            # the run's own variables win over the image's
            options += [f"--container-env={','.join(passes)}"] if passes else []
            return [*container_step(node), *options, *argv]
        if entry.container == "enroot":
            mounts = [word for bind in binds for word in ("--mount", bind)]
            names = [word for name in passes for word in ("--env", name)]
            inside = ["sh", "-c", _SHELL, str(cwd), *argv]
            return ["enroot", "start", "--rw", *mounts, *names, image, *inside]
        bound = [word for bind in binds for word in ("--bind", bind)]
        return ["apptainer", "exec", "--nv", "--pwd", str(cwd), *bound, image, *argv]


def find_environment(
    library: str, version: str, options: NodeOptions, *, gpus: bool = True
) -> TrainerEnvironment | None:
    """Return the environment of a release: the site's, else the one that `orch env create` made.

    gpus: False for a program that uses none: it gets the environment of flavour cpu, if there is
    one. Return None if no environment is known.
    """
    name = f"{library}@{version}"
    entry = options.environments.get(name) or options.environments.get(library)
    if entry is not None:
        return declared(name, entry)
    within = Path(options.environments_dir).expanduser() if options.environments_dir else None
    installed = None if gpus else find_installed(library, version, "cpu", within)
    installed = installed or find_installed(library, version, within=within)
    if installed is not None:
        added = {"ORCH_ENVIRONMENT_BIN": str(installed.bin), **installed.variables(os.environ)}
        return TrainerEnvironment({"kind": "orch env", **installed.record()}, added)
    plain = (within or root()) / f"{library}-{version}"
    if (plain / "bin" / "python").exists():
        return declared(name, EnvironmentEntry(venv=str(plain)))
    return None


def environment_for(
    plan: LaunchPlan, options: NodeOptions, *, gpus: bool = True
) -> TrainerEnvironment:
    """Return the plan's environment, or the programs on PATH if no environment is known."""
    known = find_environment(plan.backend, plan.version, options, gpus=gpus)
    return known or TrainerEnvironment({"kind": "PATH"}, foreign=False)


def run_variables(plan: LaunchPlan, options: NodeOptions) -> dict[str, str]:
    """Return the variables that a run adds to the job's. The plan's own values win.

    Raise EnvironmentFault for a secret that is missing.
    """
    env = {**options.env, **read_secrets(options.secrets)}
    if options.network_interface:
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            env.setdefault(name, options.network_interface)
    return {**env, **plan.env, **loggers.without_key({**os.environ, **env, **plan.env})}


def declared(name: str, entry: EnvironmentEntry) -> TrainerEnvironment:
    """Return the environment that a site file declares for a release."""
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


def environment_fault(
    library: str, version: str, options: NodeOptions, *, gpus: bool = True
) -> str:
    """Return what to do about a missing or broken environment; empty if it is usable.

    Look only at this machine's file system.
    """
    environment = find_environment(library, version, options, gpus=gpus)
    name = f"{library}@{version}"
    if environment is None:
        flavour = "" if gpus else " --cpu"
        folder = options.environments_dir
        where, within = (f" in {folder}", f" --dir {shlex.quote(folder)}") if folder else ("", "")
        return (
            f"no environment is known for {name}{where}: `orch env create {name}{flavour}{within}` "
            f"makes one, or say where it is in site.options.environments['{name}']"
        )
    entry = environment.entry
    if entry is None:
        return ""
    image = entry.image or ""
    # pyxis takes the address of an image without docker://
    is_file = image.startswith(("/", ".", "~")) or entry.container != "pyxis"
    if image and "://" not in image and is_file and not Path(image).expanduser().exists():
        return f"the image {image} of {name} is not there"
    programs = environment.env.get("ORCH_ENVIRONMENT_BIN")
    if programs and not any((Path(programs) / p).exists() for p in ("python", "python3")):
        return f"{programs} has no python; it is given for {name} in site.options.environments"
    return ""


def read_secrets(wanted: Mapping[str, SecretFile | None]) -> dict[str, str]:
    """Return the values of the secrets that the site file names.

    A value is never in a file of orch, in a log or in an argument, but only in the environment of
    processes. Raise EnvironmentFault that names all missing secrets, without any value.
    """
    values, faults = {}, []
    for name, source in wanted.items():
        if source is None and name in os.environ:
            values[name] = os.environ[name]
        elif source is None:
            faults.append(
                f"{name} is not set here; export it in the shell that submits, or give a file in "
                f"site.options.secrets.{name}"
            )
        else:
            path = Path(source.file).expanduser()
            try:
                values[name] = path.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "is not text"
                where = f"site.options.secrets.{name}.file"
                faults.append(f"{name} cannot be read from {path}: {why} ({where})")
    if faults:
        raise EnvironmentFault("; ".join(faults))
    return values
