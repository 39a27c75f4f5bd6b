"""Many questions to one release of a library, asked in one process and found again by name."""

from collections.abc import Hashable, Mapping
from typing import Any

from orchestrator.matrix.asking import Answers, Batch, Launch, Question, Where, ask
from orchestrator.types import LaunchPlan


class Inquiry:
    """Collects questions; `put` asks them all."""

    def __init__(self, library: str, version: str) -> None:
        self.library, self.version = library, version
        self._launches: list[Launch] = []
        self._batches: dict[str, Batch] = {}
        self._questions: dict[Hashable, Question] = {}

    def launch(self, plan: LaunchPlan, *more: str) -> int:
        """A launch to ask about, with further arguments; returns its number."""
        return self.raw({"argv": [*plan.argv, *more], "files": dict(plan.files)})

    def raw(self, launch: Launch) -> int:
        """The same, of arguments and files as they are."""
        self._launches.append(launch)
        return len(self._launches) - 1

    def batch(self, name: str, batch: Batch) -> None:
        """A batch that questions name."""
        self._batches[name] = batch

    def question(
        self, key: Hashable, what: str, launch: int, batch: str, *, place: str = "",
        only: str = "",
    ) -> None:  # fmt: skip
        """A question, to be found again under `key`; `only` one part of its answer is wanted."""
        asked: Question = {"ask": what, "launch": launch, "batch": batch, "place": place}
        if only:
            asked["only"] = [only]
        self._questions[key] = asked

    def put(self, where: Where) -> tuple[Mapping[Hashable, Mapping[str, Any]], Answers]:
        """Ask; answers by key, and what else was said."""
        told = ask(
            self.library, self.version, where, launches=self._launches, batches=self._batches,
            questions=list(self._questions.values()),
        )  # fmt: skip
        return dict(zip(self._questions, told.answers, strict=True)), told
