"""Path -> Spec: read, compose, resolve, check. Every fault of the file is told at once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator import registry
from orchestrator.errors import Fault, SpecError, did_you_mean
from orchestrator.expand import Expansion, expand, expansion, keep
from orchestrator.expand.assign import Assignment, Pointer, Problem, read
from orchestrator.expand.build import layered
from orchestrator.spec.check import checked, valid
from orchestrator.spec.claims import check_claims
from orchestrator.spec.compose import KINDS, compose, documents, overrides_of, place, resolved
from orchestrator.spec.effect import unfelt
from orchestrator.spec.groups import GROUPS, Library
from orchestrator.spec.language import SpecFile, StudyFile
from orchestrator.types import Evaluation, Published, Site, Spec, Study

LIBRARIES = ("verl", "openrlhf", "skyrl", "prime_rl")
"""Libraries a spec may name whether or not this installation drives them."""
MAX_FAULTS = 100


def load(path: Path, overrides: Sequence[str] = ()) -> Spec:
    """Reads a spec file and checks every cell of it.

    `overrides` are in Hydra's grammar. Raises SpecError with every fault found, each with its
    file and line.
    """
    faults: list[Fault] = []
    library = Library(path.parent, faults)
    if path.suffix != ".yaml" and path.is_file():
        faults.append(Fault("a spec's file name ends in .yaml", "$", path))
    told = overrides_of(overrides, faults)
    chosen = {o.key: o.value for o in told if o.key in GROUPS and isinstance(o.value, str)}
    data = documents(path, library, chosen)
    _stop(path, faults)
    composed = compose(path, told, data, faults)
    _stop(path, faults)
    for override in told:
        pointer = place(override.key, composed)
        if pointer and (pointer[0] not in chosen or isinstance(data.get(override.key), str)):
            library.overridden.append((pointer, override.text))
    problems: list[Problem] = []
    found: list[tuple[str, Pointer]] = []
    file = checked(resolved(composed, found), problems)
    problems += [Problem(*told_) for told_ in found]
    spec = _assembled(file, path, library, problems, strict=not overrides) if file else None
    if spec and not problems and told:
        problems += unfelt(told, expand(spec))
    faults += [library.fault(problem.message, problem.pointer) for problem in problems]
    _stop(path, faults)
    if spec is None:
        raise TypeError(f"{path} has no fault and gives no spec")
    return spec


def _stop(path: Path, faults: Sequence[Fault]) -> None:
    """Raises if there is any fault: those of the spec first, by file and line."""
    if not faults:
        return
    ordered = sorted(
        dict.fromkeys(faults), key=lambda f: (f.file != path, str(f.file or ""), f.line or 0)
    )
    left = len(ordered) - MAX_FAULTS
    if left > 0:
        ordered = [*ordered[:MAX_FAULTS], Fault(f"... and {left} more")]
    raise SpecError(str(path), ordered)


def _assembled(
    file: SpecFile, path: Path, library: Library, problems: list[Problem], *, strict: bool
) -> Spec:
    known = sorted({*registry.names(), *LIBRARIES})

    def lookup(group: str, name: str) -> Mapping[str, Any]:
        if group != "backend":
            return library.entry(group, name)
        if name not in known:
            raise LookupError(f"no backend is called '{name}'{did_you_mean(name, known)} "
                              f"(there are: {', '.join(known)})")  # fmt: skip
        return {}

    studies, origins, broken = [], {}, []
    _check_seeds(file.seeds, ("seeds",), problems)
    for name, study in file.studies.items():
        layers = _Layers(file, study, name, library, problems)
        before = len(problems)
        base, origins[name] = layered(layers.assignments(lookup))
        if len(problems) > before:
            broken.append(("studies", name))
        if study.seeds is not None:
            _check_seeds(study.seeds, ("studies", name, "seeds"), problems)
        studies.append(Study(
            name=name, title=study.title, figure=study.figure, base=base, axes=study.axes,
            exclude=tuple(study.exclude), include=tuple(study.include),
            seeds=tuple(file.seeds if study.seeds is None else study.seeds),
        ))  # fmt: skip
    done = expansion(studies, lookup, origins, strict=strict)
    problems += [  # what a recipe that is not there would have given is not told as well
        p for p in done.problems if not (p.pointer in broken and " is missing" in p.message)
    ]
    evaluation = _evaluation(file, library, problems)
    site = _site(file, library, problems)
    published = _published(file, library, done, problems)
    check_claims(file.claims, done, [s.name for s in studies], problems, strict=strict)
    spec = Spec(
        name=file.name, question=file.question, description=file.description,
        studies=tuple(studies), claims=file.claims, evaluation=evaluation,
        published=published, site=site,
        tune=file.tune, groups=_used(library), source=str(path),
    )  # fmt: skip
    keep(spec, done)
    return spec


def _used(library: Library) -> dict[str, dict[str, Any]]:
    """The entries that an axis may name again when the spec is expanded."""
    groups: dict[str, dict[str, Any]] = {}
    for (group, name), data in library.entries.items():
        if group in ("model", "data"):
            groups.setdefault(group, {})[name] = dict(data)
    return groups


class _Layers(NamedTuple):
    """What a study stands on: recipe, the spec's base, the study's own; later ones win."""

    file: SpecFile
    study: StudyFile
    name: str
    library: Library
    problems: list[Problem]

    def assignments(self, lookup: Any) -> list[Assignment]:
        at: Pointer = ("studies", self.name)
        found = self._recipe(at, lookup)
        for owner, root in ((self.file, ()), (self.study, at)):
            for field in ("model", "data", "backend"):
                value = getattr(owner, field)
                if value is not None:
                    found += read(field, value, (*root, field), lookup, self.problems)
            found += read("", owner.base, (*root, "base"), lookup, self.problems)
        return found

    def _recipe(self, at: Pointer, lookup: Any) -> list[Assignment]:
        own = self.study.recipe is not None
        pointer: Pointer = (*at, "recipe") if own else ("recipe",)
        content, pointer = _entry(
            self.study.recipe if own else self.file.recipe, "recipe", pointer, self.library,
            self.problems,
        )  # fmt: skip
        return list(read("", content, pointer, lookup, self.problems))


def _entry(
    written: str | Mapping[str, Any] | None, group: str, pointer: Pointer, library: Library,
    problems: list[Problem],
) -> tuple[Mapping[str, Any], Pointer]:  # fmt: skip
    """The content of a group entry or of what stands in its place, and where it was written."""
    if not isinstance(written, str):
        return written or {}, pointer
    try:
        return library.entry(group, written), (f"@{group}", written)
    except LookupError as error:
        problems.append(Problem(str(error.args[0]), pointer))
        return {}, pointer


def _check_seeds(seeds: Sequence[int], pointer: Pointer, problems: list[Problem]) -> None:
    if not seeds:
        problems.append(Problem("an axis needs at least one value; seeds is empty", pointer))
    for i, seed in enumerate(seeds):
        if seed in seeds[:i]:
            problems.append(Problem(f"seed {seed} is there twice", (*pointer, i)))


def _evaluation(file: SpecFile, library: Library, problems: list[Problem]) -> Evaluation:
    content, at = _entry(file.evaluation, "evaluation", ("evaluation",), library, problems)
    plain = dict(content)
    if file.sampling is not None and "sampling" in plain:
        problems.append(Problem("sampling is written twice: here and in evaluation", ("sampling",)))
    for owner, pointer in ((plain.get("sampling"), (*at, "sampling")),
                           (file.sampling, ("sampling",))):  # fmt: skip
        if owner is not None:
            plain["sampling"] = _entry(owner, "sampling", pointer, library, problems)[0]
    evaluation = valid(Evaluation, plain, at, problems)
    if not isinstance(evaluation, Evaluation):
        return Evaluation()
    names = [task.name for task in evaluation.tasks]
    for i, name in enumerate(names):
        if name in names[:i]:
            problems.append(Problem(f"task '{name}' is there twice", (*at, "tasks", i)))
    return evaluation


def _published(
    file: SpecFile, library: Library, done: Expansion, problems: list[Problem]
) -> Published:
    content, at = _entry(file.published, "published", ("published",), library, problems)
    published = valid(Published, dict(content), at, problems)
    if not isinstance(published, Published):
        return Published()
    for i, number in enumerate(published.numbers):
        told: list[Problem] = []
        check_claims({number.name: number.claim}, done, list(file.studies), told, strict=False)
        problems += [Problem(each.message, (*at, "numbers", i, "claim")) for each in told]
    return published


def _site(file: SpecFile, library: Library, problems: list[Problem]) -> Site:
    written = file.site
    if isinstance(written, str) and written in KINDS and written not in library.names("site"):
        written = {"kind": written}
    content, at = _entry(written, "site", ("site",), library, problems)
    site = valid(Site, dict(content), at, problems)
    if not isinstance(site, Site):
        return Site()
    if site.options:
        from orchestrator.launch.slurm.options import faults

        problems += [Problem(said, (*at, "options", *loc)) for said, loc in faults(site.options)]
    return site
