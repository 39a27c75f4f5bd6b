"""The options that TRL's own classes GRPOConfig and RLOOConfig have had, release by release.

python -m tests.backends.trl.history FOLDER     writes backends/trl/history.json anew, and what
                                                each release's own loss measures, defaults.json

FOLDER holds the files trl/trainer/*.py of each release, as `pip download --no-deps trl==V` gives
them, under the release's number. They are read, not imported: each wants another transformers.
"""

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends.trl.options import HISTORY, SCRIPTS, own_options
from docs.tools import drift
from orchestrator import plugins
from orchestrator.lab.probes.measure import (
    REGIMES,
    ask_for_update,
    batch_name,
    measured_objective,
    models,
)
from orchestrator.lab.probes.protocol import Inquiry, ProbeBatch, ProbeTarget, every_group
from orchestrator.lab.probes.runner import Sources
from orchestrator.library.key_tables import Option, numbers, written_options

CLASSES = {"grpo": "GRPOConfig", "rloo": "RLOOConfig"}


def _kind(annotation: str) -> str:
    """Return `Optional[float]` for `float | None`, and the plain type where there is one."""
    inner = annotation.removesuffix(" | None")
    return f"Optional[{inner}]" if inner != annotation else annotation


def _default(node: ast.expr | None) -> object:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        node = next((each.value for each in node.keywords if each.arg == "default"), None)
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _fields(name: str, classes: Mapping[str, ast.ClassDef]) -> dict[str, Option]:
    if name not in classes:
        return {}
    node, fields = classes[name], dict[str, Option]()
    for base in node.bases:
        fields |= _fields(ast.unparse(base).rpartition(".")[2], classes)
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            kind = ast.unparse(each.annotation)
            if not kind.startswith("ClassVar"):
                fields[each.target.id] = Option(_kind(kind), _default(each.value))
    return fields


def of_release(folder: Path) -> dict[str, Option]:
    """Return the options of one release, as `grpo.beta`."""
    files = (folder / "trl" / "trainer").glob("*.py")
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(files)]
    classes = {n.name: n for tree in trees for n in tree.body if isinstance(n, ast.ClassDef)}
    return {
        f"{script}.{key}": option
        for script in SCRIPTS
        for key, option in _fields(CLASSES[script], classes).items()
    }


BETA = 0.5
LAUNCHES: Mapping[str, tuple[str, ...]] = {
    "nothing": (),
    "beta": ("--beta", str(BETA)),
}
"""Name -> the KL options of a launch: none, or the coefficient alone."""


def measure_defaults(
    library: str, version: str, where: ProbeTarget, defaults: Mapping[str, object]
) -> dict[str, Any]:
    """Return the measured objective of each of LAUNCHES in a release, on- and off-policy.

    Each has its gradient. `sources` has the hash of each function that was run.
    """
    inquiry = Inquiry(library, version)
    for on_policy in (True, False):
        for index, setting in enumerate(models(on_policy)):
            batch = every_group(setting)
            zero = [[0.0] * len(row) for row in batch["logp"]]
            inquiry.add_batch(
                batch_name(on_policy, index), ProbeBatch(**{**batch, "advantages": zero})
            )
    for label, words in LAUNCHES.items():
        argv = ["grpo", *words]
        launch = inquiry.add_own_launch(
            {"argv": argv, "files": {drift.DEFAULTS: json.dumps(defaults)}}
        )
        for on_policy in (True, False):
            ask_for_update(inquiry, (label, on_policy), launch, on_policy, what="loss")
    answers, sources = inquiry.send(where, Path(__file__).with_name("default_probe.py"))
    return {
        "sources": {key: each["sha256"] for key, each in sources.items()},
        **{
            label: {
                name: _rounded(measured_objective(answers, (label, on), on, beta))
                for name, on in REGIMES.items()
            }
            for label, beta in (("nothing", 1.0), ("beta", BETA))
        },
    }


def _rounded(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a measurement with its gradient at the first policy only, rounded to 6 digits."""
    if "error" in answer:
        return dict(answer)
    first = [float(f"{x:.6g}") + 0.0 for x in answer["gradient"][0]]
    return {**answer, "gradient": [0.0 if abs(x) < 1e-12 else x for x in first]}


DECIDING = ("beta", "use_bias_correction_kl", "importance_sampling_level", "loss_type")
FIRST_MEASURED = (0, 15)
"""0.14.0 generates inside its loss."""


def measured(package: Path, version: str) -> dict[str, Any]:
    """Return what a release's own loss makes of a launch with the release's defaults."""
    given = {key: option.default for key, option in own_options("grpo")[version].items()}
    where = ProbeTarget(Path(sys.executable), package)
    answers = measure_defaults("trl", version, where, given)
    return {"defaults": {key: given.get(key) for key in DECIDING}, **answers}


def _sources(package: Path, used: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of the same definitions in another release."""
    sources = Sources(package)
    for each in used:
        sources.uses(*each.split(":"))
    return {key: each["sha256"] for key, each in sources.used.items()}


def _loss(folder: Path, version: str) -> object:
    """Return what a measurement depends on: the text of the loss, and the defaults."""
    text = (folder / version / "trl/trainer/grpo_trainer.py").read_text(encoding="utf-8")
    loss = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name in ("compute_loss", "_compute_loss")
    ]
    given = own_options("grpo")[version]
    return loss, [(key, given[key].default) for key in DECIDING if key in given]


def main(folder: Path) -> None:
    releases = sorted((each for each in folder.iterdir() if (each / "trl").is_dir()), key=_order)
    HISTORY.write_text(
        written_options({each.name: of_release(each) for each in releases}), encoding="utf-8"
    )
    kept: dict[str, Any] = {}
    before: object = None
    for version in (each.name for each in releases if _order(each) >= FIRST_MEASURED):
        loss = _loss(folder, version)
        package = folder / version / "trl"
        if loss == before and kept:  # only comments differ: the numbers are those of the last one
            last = kept[list(kept)[-1]]
            kept[version] = {**last, "sources": _sources(package, last["sources"])}
        else:
            kept[version] = measured(package, version)
        before = loss
    lines = ",\n".join(f" {json.dumps(v)}: {json.dumps(each)}" for v, each in kept.items())
    file = plugins.folder("trl") / drift.DEFAULTS
    file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _order(folder: Path) -> tuple[int, ...]:
    return numbers(folder.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
