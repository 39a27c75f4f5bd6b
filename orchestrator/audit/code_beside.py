"""What the code beside a script says of its launch, in sentences of a finding."""

import re
from collections.abc import Iterable, Iterator

from orchestrator.analysis.text import few
from orchestrator.audit.checkout import SEARCHES, changed, known_code, places, uses
from orchestrator.library.launches import Launch, LaunchChange, LaunchReading

_OF_A_KL = re.compile(r"^(?!compute_policy).*(kl_|_kl|ref_(policy|log))")
"""Functions that do nothing without a KL."""
_AVERAGES = re.compile(r"\.loss_(agg|avg|aggregation)(_mode)?$")
"""Keys that say how a loss is averaged, which makes no KL where there is none."""


class CodeBeside:
    """The checkout around one launch: its parser's keys, and its functions against the releases."""

    def __init__(self, reading: LaunchReading, launch: Launch):
        known = known_code(reading.library)
        self._library, self._files = reading.library, launch.beside
        self._paths = known.files
        self._has_kl = (reading.in_reward.active, reading.in_loss.active) != (False, False)
        self._at_hand = any(path in launch.beside for path in known.files)
        self._keys = reading.held.checkout if reading.held is not None else frozenset[str]()
        values = [each.text for several in reading.given.values() for each in several]
        values.append(reading.advantage_estimator or "")
        # A fork with a name of its own has no release to be of.
        is_release = re.match(r"(train )?\d", reading.version)
        found = changed(launch.beside, known, values) if is_release else ()
        self.changed_code = tuple(e for e in found if self._has_kl or not _OF_A_KL.search(e.name))

    def changed(self) -> Iterator[str]:
        """Yield what is taken for granted of functions that are as in no release."""
        if code := self.changed_code:
            does = "does" if len(code) == 1 else "do"
            yield (
                f"{few([each.name for each in code])} beside it, as in no release of "
                f"{self._library} that orch read, {does} what the library's {does} (read "
                f"{few([each.place for each in code])})"
            )

    def decides(self, key: str) -> bool:
        """Return True if a statement of the checkout that reads a key touches the KL, the
        reference, the loss or (with a KL) the advantage, and does more than to divide by it; if a
        search reads it in such a file; or if none of this code is at hand."""
        if _AVERAGES.search(key) and not self._has_kl:
            return False
        searches = SEARCHES.search(key) and places([key], self._files, self._paths)
        return bool(not self._at_hand or searches) or any(
            touches and not divides for _, touches, divides in self._uses(key)
        )

    def divides(self, keys: Iterable[str]) -> Iterator[str]:
        """Yield what is taken for granted of keys that the checkout only divides by."""
        for key in keys:
            uses = [*self._uses(key)]
            if uses and all(divides for _, _, divides in uses):
                yield f"{key} divides the reward or the advantage: beta counts in its unit"

    def _uses(self, key: str) -> Iterator[tuple[int, bool, bool]]:
        for path in self._paths:
            yield from uses(key, self._files.get(path) or "", has_kl=self._has_kl)

    def forks_decide(self, keys: list[str] | tuple[str, ...]) -> str:
        """Return what decides where a fork's keys do: the keys, with the lines that read them."""
        files = places(keys, self._files, self._paths)
        where = f"read {'; '.join(files)}" if files else "read where the checkout uses it"
        return f"what {few(keys)} does: it is a fork's key, so {where}"

    def names(self, keys: Iterable[str]) -> str:
        """Return, in brackets, where the code names keys, or that it names none; else nothing."""
        files = places(keys, self._files, self._paths)
        if files:
            return f"(read {'; '.join(files)})"
        if self._at_hand:
            return "(no file beside it that has the KL, the advantage or the loss names them)"
        return ""

    def takes(self, change: LaunchChange) -> bool:
        """Return True if the checkout's own parser, where it is at hand, has a change's keys."""
        has_all = all(each.text is None or each.key in self._keys for each in change.edits)
        return not self._keys or has_all
