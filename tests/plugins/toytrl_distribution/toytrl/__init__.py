"""A toy library, driven by a package of its own: `toytrl.train --key value`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.errors import LogFault
from orchestrator.kl.library_semantics import PLAIN, Semantics
from orchestrator.library.manifest import TEXT, Manifest, Number, ReleaseTable, Row, same
from orchestrator.library.protocol import Backend
from orchestrator.records import AttemptPaths, Cell, Checkpoint, LaunchPlan, MetricPoint
from orchestrator.settings import Settings

OFFERS = {
    "model.chat_template": same("default"),
    "data.reward": same("exact", "math_boxed", "countdown"),
    "advantage.estimator": same("rloo", "grpo"),
    "loss.aggregation": same("token_mean", "sequence_mean"),
    "loss.constant_tokens": same(None),
    "loss.clip": same(None),
    "kl.estimator": same("none", "k1", "k3"),
    "kl.placement": same(None, "reward", "loss"),
    "kl.reset_reference_every_steps": same(None),
    "rollout.top_p": same(1.0),
    "optimizer.schedule": same("constant", "linear"),
    "backend.version": same(None, "1.0"),
}
TEXTS = (
    "model.name",
    "model.path",
    "data.name",
    "data.path",
    "data.split",
    "data.instruction",
    "backend.name",
)
NUMBERS = (
    "data.num_prompts",
    "data.max_prompt_tokens",
    "kl.beta",
    "rollout.group_size",
    "rollout.max_response_tokens",
    "rollout.temperature",
    "batch.num_prompts",
    "batch.num_minibatches",
    "optimizer.learning_rate",
    "optimizer.weight_decay",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.epsilon",
    "optimizer.max_grad_norm",
    "optimizer.num_warmup_steps",
    "num_train_steps",
    "max_staleness_steps",
    "seed",
)
KEYS = json.loads((Path(__file__).parent / "keys.json").read_text())
"""What the parser of toytrl 1.0 takes."""
offers = OFFERS | dict.fromkeys(TEXTS, TEXT) | dict.fromkeys(NUMBERS, Number(null=True))
ROWS = tuple(Row(field, KEYS[field], offer) for field, offer in offers.items())
MANIFEST = Manifest(
    "toytrl", ("1.0",), ROWS, {"1.0": ReleaseTable("1.0", frozenset(KEYS.values()))}
)


class ToyTrl(Backend):
    """The toy."""

    name, manifest = "toytrl", MANIFEST

    def translate(self, cell: Cell, paths: AttemptPaths) -> LaunchPlan:
        carried = MANIFEST.carry(cell.settings)
        sent = MANIFEST.assignments(cell.settings, carried)
        return LaunchPlan(
            cell_id=cell.id,
            backend=self.name,
            version="1.0",
            argv=(
                "python",
                "-m",
                "toytrl.train",
                f"out_dir={paths.checkpoints_dir}",
                *(f"{key}={json.dumps(value)}" for key, value in sent.items()),
            ),
            ledger=MANIFEST.ledger(cell.settings, sent, carried),
        )

    def parse(self, argv: Sequence[str], files: Mapping[str, str]) -> Settings:
        words = (
            word.partition("=") for word in argv if "=" in word and not word.startswith("out_dir")
        )
        return Settings.model_validate(
            MANIFEST.read({k: json.loads(v) for k, _, v in words}, "1.0")
        )

    def read_metrics(self, attempt_dir: Path) -> Iterator[MetricPoint]:
        log = attempt_dir / "log.jsonl"
        for line in log.read_bytes().splitlines(keepends=True) if log.exists() else ():
            if not line.endswith(b"\n"):
                return
            row = json.loads(line)
            if "reward" not in row:
                raise LogFault.of_names(log, "toytrl", self.versions, row, "reward")
            yield MetricPoint(row["step"], row["time"], {"train/reward_mean": row["reward"]})

    def find_checkpoints(self, checkpoints_dir: Path) -> list[Checkpoint]:
        begun = self.begun_checkpoints(checkpoints_dir)
        whole = [each for each in begun if (each / "DONE").exists()]
        return sorted(Checkpoint(int(each.name.removeprefix("step-")), each) for each in whole)

    def begun_checkpoints(self, checkpoints_dir: Path) -> list[Path]:
        return sorted(checkpoints_dir.glob("step-*"))

    def semantics(self, version: str | None) -> Semantics:
        MANIFEST.release(version)
        return Semantics(PLAIN)


BACKEND = ToyTrl()
