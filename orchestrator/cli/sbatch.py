"""One cell as a batch script of its own, for a person to paste: no orch on the cluster."""

import shlex
from collections.abc import Iterator

from orchestrator.data import prepared
from orchestrator.environments import Environment
from orchestrator.launch.slurm.script import ArrayJob, array_resources, text
from orchestrator.records import AttemptPaths, Cell, LaunchPlan
from orchestrator.spec.site_options import SlurmOptions

_NODES = 'nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))'
_STEP = "srun --overlap --nodes=1 --ntasks=1"
_WAIT = (
    "import ray, sys, time; ray.init(logging_level='error'); "
    "until = time.time() + 600\n"
    "while sum(n['Alive'] for n in ray.nodes()) < int(sys.argv[1]):\n"
    "    assert time.time() < until, 'the nodes did not join within 10 minutes'\n"
    "    time.sleep(2)"
)


def script(
    cell: Cell,
    plan: LaunchPlan,
    place: AttemptPaths,
    options: SlurmOptions,
    made: Environment | None,
) -> str:
    """Return the script: the header orch's own jobs have, the plan's files, what the nodes need,
    argv.

    made: the release's environment, where there is one on this machine. Unlike `orch run` it does
    not resume, watch or record anything.
    """
    lines = [*_header(cell, options), *_environment(plan, made), *_files(plan, place)]
    lines += _prompts(plan)
    lines += [f"export {name}={shlex.quote(value)}" for name, value in plan.env.items()]
    lines += [*_bring_up(cell, plan), ""]
    return "\n".join(lines)


def _header(cell: Cell, options: SlurmOptions) -> Iterator[str]:
    """Return orch's header for one cell, without what makes it an element of an array."""
    array = ("array", "output", "error", "signal", "requeue", "open-mode")
    for line in text(ArrayJob(cell.slug, 1, array_resources(cell)), options).splitlines():
        flag = line.removeprefix("#SBATCH --").partition("=")[0].strip()
        if line.startswith("#!") or (line.startswith("#SBATCH ") and flag not in array):
            yield line
    yield f"#SBATCH --output={cell.slug}.%j.log"
    yield "set -euo pipefail"


def _environment(plan: LaunchPlan, made: Environment | None) -> Iterator[str]:
    name = f"{plan.backend}@{plan.version}"
    if made is None:
        yield f"# {name} has no environment here: `orch env create {name}` makes one. Its programs"
        yield "# must be first on PATH, on every node:"
        yield "# export PATH=.../bin:$PATH"
    else:
        yield f"export PATH={shlex.quote(str(made.bin))}:$PATH PYTHONNOUSERSITE=1"


def _files(plan: LaunchPlan, place: AttemptPaths) -> Iterator[str]:
    """Yield each file as a heredoc whose end marker is no line of the file."""
    yield f"mkdir -p {shlex.quote(str(place.attempt_dir))} {shlex.quote(str(place.plan_dir))}"
    yield f"cd {shlex.quote(str(place.plan_dir))}"
    for name, content in plan.files.items():
        end = "EOF"
        while end in content.splitlines():
            end += "_"
        if "/" in name:
            yield f"mkdir -p {shlex.quote(name.rpartition('/')[0])}"
        yield f"cat > {shlex.quote(name)} <<'{end}'"
        yield content.removesuffix("\n")
        yield end


def _prompts(plan: LaunchPlan) -> Iterator[str]:
    """Yield the lines that put prepared prompts where the plan reads them."""
    target = prepared.folder_of(plan)
    if target is not None:
        yield f"test -e data || ln -s {shlex.quote(str(target))} data"
        why = f"the prompts are not there: {target} (orch data prepare SPEC makes them)"
        yield f"test -e data/ || {{ echo {shlex.quote(why)} >&2; exit 1; }}"


def _bring_up(cell: Cell, plan: LaunchPlan) -> Iterator[str]:
    argv, count = shlex.join(plan.argv), cell.resources.num_nodes
    if plan.bring_up == "program" or (plan.bring_up == "ranks" and count == 1):
        yield argv
        return
    yield _NODES
    if plan.bring_up == "ranks":
        yield 'export ORCH_SERVER_HOST="${nodes[1]}"'
        yield f'ORCH_NODE_RANK=1 {_STEP} --nodelist="${{nodes[1]}}" {argv} &'
        yield f"ORCH_NODE_RANK=0 {argv}"
        return
    gpus = f"--num-gpus={cell.resources.gpus_per_node}"
    yield "port=$((20000 + SLURM_JOB_ID % 20000))"
    yield 'export RAY_ADDRESS="${nodes[0]}:$port"'
    head = f'{_STEP} --nodelist="${{nodes[0]}}" ray start --head --port="$port" {gpus} --block &'
    yield head
    yield "sleep 20"
    if count > 1:
        yield 'for node in "${nodes[@]:1}"; do'
        join = f'{_STEP} --nodelist="$node" ray start --address="$RAY_ADDRESS" {gpus} --block &'
        yield f"  {join}"
        yield "done"
    yield f"python -c {shlex.quote(_WAIT)} {count}"
    yield argv
