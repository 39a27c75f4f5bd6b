"""A launch on a machine without an accelerator: the same program, and what had to differ.

`Backend.cpu_launch` takes the plan that `translate` made and returns the plan that runs here. The
trainer, its loss, its optimizer, its data path and its files are the library's own. Only the device
and the inference engine have stand-ins, loaded by the library's own registries where it has some.

Each difference is a `Deviation`: an argument, an environment variable, a file that was added, or a
part of the library that a file replaces. `differences` finds those of arguments and variables, so
that none is forgotten; a backend writes why, and the parts that its files replace.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from orchestrator.library.rollout_dump import PASSES
from orchestrator.records import LaunchPlan


class Deviation(NamedTuple):
    """One thing that differs from the launch."""

    kind: Literal["argument", "variable", "file", "part", "setting"]
    """part: code of the library or of a package that a stand-in replaces in the process. setting: a
    field of the cell, where a smaller cell is trained."""
    name: str
    launch: str | None
    """The value in the launch; None: none."""
    here: str | None
    """The value in the run on this machine; None: none."""
    why: str = ""

    def __str__(self) -> str:
        was, now = (repr(x) if x is not None else "(none)" for x in (self.launch, self.here))
        text = (
            f"{self.name}: {was} -> {now}" if self.kind != "part" else f"{self.name}: {self.here}"
        )
        return f"{text}  ({self.why})" if self.why else text


class CpuLaunch(NamedTuple):
    """A launch that runs on this machine, and every difference from the requested one."""

    plan: LaunchPlan
    deviations: tuple[Deviation, ...]
    fp32_parts: tuple[Deviation, ...] = ()
    """What its stand-ins replace besides, under PASSES, so that passes are in fp32. Empty: they
    cannot, or the library has an argument for it."""

    def in_fp32(self) -> "CpuLaunch":
        """Return the launch with its passes in fp32; itself if its stand-ins have no way to.

        A library that rounds to bf16 can then be held to a prediction in fp32: all that is left is
        its own arithmetic.
        """
        if not self.fp32_parts:
            return self
        plan = self.plan.model_copy(update={"env": {**self.plan.env, PASSES: "fp32"}})
        variable = Deviation("variable", PASSES, None, "fp32", "no rounding in what is compared")
        return CpuLaunch(plan, (*self.deviations, variable, *self.fp32_parts))


class Trimmed(NamedTuple):
    """Anybody's launch without what makes it large or belongs to its machines."""

    argv: tuple[str, ...]
    deviations: tuple[Deviation, ...] = ()
    """What was left out or set, each with the reason."""


def reason_to_leave_out(name: str, reasons: Mapping[str, str]) -> str:
    """Return why an argument is left out, or "".

    reasons: name of an argument, or of a section (`ds` for `ds.zpg`) -> reason; an empty reason
    keeps it. The longest name counts.
    """
    parts = name.split(".")
    sections = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((reasons[each] for each in sections if each in reasons), "")


Split = Callable[[Sequence[str]], Mapping[str, str]]
"""Arguments -> key -> value, as the library reads them. The last value of a key counts."""


def differences(
    launch: LaunchPlan, on_cpu: LaunchPlan, split: Split, why: Mapping[str, str]
) -> Iterator[Deviation]:
    """Yield every argument, variable and file in which two plans differ, by name.

    why: name -> reason.
    """
    parts: tuple[
        tuple[Literal["argument", "variable", "file"], Mapping[str, str], Mapping[str, str]], ...
    ] = (
        ("argument", split(launch.argv), split(on_cpu.argv)),
        ("variable", launch.env, on_cpu.env),
        ("file", dict.fromkeys(launch.files, ""), dict.fromkeys(on_cpu.files, "added")),
    )
    for kind, before, after in parts:
        for name in sorted(before.keys() | after.keys()):
            if kind == "file" and name in before and name in after:
                if launch.files[name] != on_cpu.files[name]:
                    yield Deviation(kind, name, "", "changed", why.get(name, ""))
            elif before.get(name) != after.get(name):
                yield Deviation(kind, name, before.get(name), after.get(name), why.get(name, ""))
