"""A long evaluation in slices of items. A slice is written when it is done, and never made twice.

<task>-<key>.part-<first>-<end>    items of one slice, while others are missing
<task>-<key>.jsonl, .json          everything, once nothing is missing; the parts are gone
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import CheckpointError, RunFolderError
from orchestrator.evaluate.items import Item, Mean, fingerprint_of, shares_of
from orchestrator.evaluate.scores import Result, ScoreKey, ScoringJob
from orchestrator.files import read_json, write_text
from orchestrator.records import Score

Shard = dict[str, Any]
"""`items`, and the `seconds` and `cpu_seconds` they took."""


def joined(parts: Sequence[Shard]) -> list[Item]:
    """Return the items of all slices, in order."""
    return [item for part in parts for item in part["items"]]


@dataclass(frozen=True)
class Shards:
    """The slices of one request. `target`: its .json."""

    target: Path
    num_items: int
    repeats: int
    responses: int
    """Largest number of responses in a slice. A slice has at least one item."""

    def parts(self) -> list[range]:
        """Return the item numbers of each slice."""
        size = max(1, self.responses // self.repeats)
        return [
            range(first, min(first + size, self.num_items))
            for first in range(0, self.num_items, size)
        ]

    def read(self, part: range) -> Shard | None:
        """Return a slice on disk. Return None if it is missing or invalid: it is then made
        again."""
        try:
            plain = read_json(self._path(part))
        except RunFolderError:
            return None
        is_complete = plain is not None and len(plain.get("items", ())) == len(part)
        return plain if is_complete else None

    def keep(self, part: range, shard: Shard) -> None:
        """Write a slice, unless it is the whole evaluation."""
        if len(part) < self.num_items:
            write_text(self._path(part), json.dumps(shard, ensure_ascii=False))

    def finish(
        self,
        job: ScoringJob,
        score_key: ScoreKey,
        shards: Sequence[Shard],
        means: Mapping[str, Mean],
        versions: Mapping[str, str],
    ) -> None:
        """Write the result and remove the slices.

        Raise CheckpointError, and write nothing, if a mean is not a finite number.
        """
        for metric, mean in means.items():
            if not math.isfinite(mean.value):
                raise CheckpointError(
                    f"{score_key.task.name} {metric} of checkpoint {job.checkpoint} is "
                    f"{mean.value}: its policy gives no finite probabilities, so nothing was kept"
                )
        items = joined(shards)
        items_path = f"eval/{score_key.stem}.jsonl"
        scores = tuple(
            Score(
                cell_id=job.cell_id,
                step=score_key.step,
                task=score_key.task.name,
                domain=score_key.task.domain,
                metric=metric,
                value=mean.value,
                stderr=mean.stderr,
                num_items=len(items),
                repeats=self.repeats,
                eval_seed=score_key.seed,
                sampling=score_key.sampling,
                task_version=score_key.task_version,
                harness=score_key.harness,
                seconds=sum(part["seconds"] for part in shards),
                items_path=items_path,
            )
            for metric, mean in means.items()
        )
        result = Result(
            asked=score_key,
            files=job.files,
            scores=scores,
            items=fingerprint_of(items),
            shares=shares_of(items),
            cpu_seconds=sum(part["cpu_seconds"] for part in shards),
            versions=dict(versions),
        )
        lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
        write_text(self.target.with_suffix(".jsonl"), lines)  # first: scores have their items
        write_text(self.target, result.model_dump_json() + "\n")
        # A glob would compile a pattern of its own for each result.
        for path in self.target.parent.iterdir():
            if path.name.startswith(f"{self.target.stem}.part-"):
                path.unlink(missing_ok=True)

    def _path(self, part: range) -> Path:
        return self.target.with_name(f"{self.target.stem}.part-{part.start}-{part.stop}")
