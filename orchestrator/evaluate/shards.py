"""A long evaluation in slices of items. A slice is written when it is done, and never made twice.

<task>-<key>.part-<slice>          items of one slice, while others are missing
<task>-<key>.jsonl, .json          everything, once nothing is missing; the parts are gone
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import CheckpointError, RunFolderError
from orchestrator.evaluate.items import Item, Mean, fingerprint_of, shares_of
from orchestrator.evaluate.scores import ItemRequest, Result, ScoreKey, ScoringJob
from orchestrator.files import read_json, write_text
from orchestrator.records import Score

Shard = dict[str, Any]
"""`items`, and the `seconds` and `cpu_seconds` they took."""


def joined(parts: Sequence[Shard]) -> list[Item]:
    """Return the items of all slices, in order."""
    return [item for part in parts for item in part["items"]]


@dataclass(frozen=True)
class Shards:
    """The slices of one request of a job."""

    job: ScoringJob
    ask: ItemRequest
    versions: Mapping[str, str]
    """Package -> version, of the software that generates."""

    @property
    def asked(self) -> ScoreKey:
        """Return what is asked."""
        return self.ask.asked

    def parts(self, num_items: int, repeats: int) -> list[range]:
        """Return the item numbers of each slice."""
        size = max(1, self.job.slice_responses // repeats)
        starts = range(0, num_items, size)
        return [range(first, min(first + size, num_items)) for first in starts]

    def made(self, part: str, make: Callable[[], Shard], *, alone: bool = False) -> Shard:
        """Return a slice: from disk, or made anew and written, unless it is alone.

        One on disk that is invalid is made again.
        """
        target = Path(self.ask.results)
        path = target.with_name(f"{target.stem}.part-{part}")
        try:
            kept = read_json(path) or {}
        except RunFolderError:
            kept = {}
        if {"items", "seconds", "cpu_seconds"} <= kept.keys():
            return kept
        started, cpu = time.perf_counter(), time.process_time()
        shard = make()
        shard["seconds"] = time.perf_counter() - started
        shard["cpu_seconds"] = time.process_time() - cpu
        if not alone:
            write_text(path, json.dumps(shard, ensure_ascii=False))
        return shard

    def finish(
        self, items: Sequence[Item], means: Mapping[str, Mean], shards: Sequence[Shard]
    ) -> None:
        """Write the result and remove the slices.

        Raise CheckpointError, and write nothing, if a mean is not a finite number.
        """
        asked, target = self.asked, Path(self.ask.results)
        for metric, mean in means.items():
            if not math.isfinite(mean.value):
                raise CheckpointError(
                    f"{asked.task.name} {metric} of checkpoint {self.job.checkpoint} is "
                    f"{mean.value}: its policy gives no finite probabilities, so nothing was kept"
                )
        scores = tuple(
            Score(
                cell_id=self.job.cell_id,
                step=asked.step,
                task=asked.task.name,
                domain=asked.task.domain,
                metric=metric,
                value=mean.value,
                stderr=mean.stderr,
                num_items=len(items),
                repeats=len(items[0]["responses"]) if "responses" in items[0] else 1,
                eval_seed=asked.seed,
                sampling=asked.sampling,
                task_version=asked.task_version,
                harness=asked.harness,
                seconds=sum(part["seconds"] for part in shards),
                items_path=f"eval/{asked.stem}.jsonl",
            )
            for metric, mean in means.items()
        )
        result = Result(
            asked=asked,
            files=self.job.files,
            scores=scores,
            items=fingerprint_of(items),
            shares=shares_of(items),
            cpu_seconds=sum(part["cpu_seconds"] for part in shards),
            versions=dict(self.versions),
        )
        lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
        write_text(target.with_suffix(".jsonl"), lines)  # first: scores have their items
        write_text(target, result.model_dump_json() + "\n")
        # A glob would compile a pattern of its own for each result.
        for path in target.parent.iterdir():
            if path.name.startswith(f"{target.stem}.part-"):
                path.unlink(missing_ok=True)
