"""The page docs/census.md: what holds the policy in public launches, counted by orch's audit.

`python -m docs.tools.census` prints it, from the rows and labels beside this file alone. A test
compares the page with the output. `python -m docs.tools.census collect FOLDER` writes the rows
anew, and `trend FOLDER` those of the trend: FOLDER has a bare git directory
`OWNER+NAME/repo` for each repository counted. A row has no text of a launch.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from docs.tools.kl_in_libraries import markdown_table
from orchestrator.audit.bounds import MAY_ACT, NEVER_ACTS, NO_BOUND, NOT_KNOWN
from orchestrator.audit.commands import LARGEST
from orchestrator.audit.counts import (
    NO_TERM,
    NOT_ITS_NAME,
    REFERENCE,
    UNDETERMINED,
    LaunchFacts,
    facts,
    launches,
    percent,
)
from orchestrator.audit.judge import AuditFinding, judge
from orchestrator.audit.libraries import NeighbourFiles, Projects
from orchestrator.audit.pipeline import launch_files, readings
from orchestrator.audit.render import WORDS
from orchestrator.kl.shares import wilson
from orchestrator.library.launches import UnreadableScript

HERE = Path(__file__).parent
ROWS, TREND, LABELS = (
    HERE / "census_rows" / f"{name}.jsonl" for name in ("launches", "trend", "labels")
)
LIBRARIES = (
    "verl-project/verl",
    "verl-project/verl-recipe",
    "NovaSky-AI/SkyRL",
    "OpenRLHF/OpenRLHF",
    "huggingface/trl",
    "PrimeIntellect-ai/prime-rl",
    "THUDM/slime",
    "modelscope/ms-swift",
    "inclusionAI/AReaL",
    "alibaba/ROLL",
    "NVIDIA-NeMo/RL",
    "allenai/open-instruct",
)
"""Repositories of a library. A file of another one that one of these ever had is a copy of it."""
QUARTERS = ("2025-08-22", "2025-11-22", "2026-02-22", "2026-05-22", "2026-08-22")
TEXTS = {"", ".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".toml", ".py", ".cfg", ".txt"}
LARGEST_FILE = 600_000
PYTHON = ("trl", "slime")
"""Libraries whose launches are Python programs; another's Python file is its code, or a comment."""
COMPOSED = ("verl", "skyrl")
"""Libraries whose launches are commands; a YAML of theirs alone is what a command builds on."""
CONFIGURED = ("nemo_rl", "roll", "areal", "prime_rl")
"""Libraries whose launches are configurations; a command of theirs starts one of these."""
LEFT_OUT = {"tests", "test", "trainer", "ci", ".github", "docker", "docs"}
"""Folders whose launches are tests of a library, or its documentation."""
SEED, DRAWS = 38, 4000


class Row(NamedTuple):
    """One launch: where it is, and what was counted of it."""

    repository: str
    commit: str
    date: str
    path: str
    line: int
    is_library: bool
    facts: LaunchFacts


class Blob(NamedTuple):
    """A file of a commit."""

    sha: str
    path: str


def git(folder: Path, *words: str) -> str:
    """Return what git prints. It fetches nothing."""
    argv = ["git", "-C", str(folder), *words]
    done = subprocess.run(argv, capture_output=True, check=True, env=offline())
    return done.stdout.decode("utf-8", "replace")


def offline() -> dict[str, str]:
    """Return the environment of a git that fetches nothing."""
    return {**os.environ, "GIT_NO_LAZY_FETCH": "1"}


def files_of(folder: Path, commit: str) -> Iterator[Blob]:
    """Yield the texts of a commit that an audit may read."""
    for entry in git(folder, "ls-tree", "-r", "-l", "-z", commit).split("\0"):
        meta, _, path = entry.partition("\t")
        if not path:
            continue
        mode, kind, sha, size = meta.split()
        small = size.isdigit() and int(size) <= LARGEST_FILE
        if kind == "blob" and mode != "120000" and small and Path(path).suffix in TEXTS:
            yield Blob(sha, path)


def check_out(folder: Path, blobs: Iterable[Blob], to: Path) -> None:
    """Write the files; what the snapshot lacks is left out."""
    argv = ["git", "-C", str(folder), "cat-file", "--batch"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=offline()) as process:
        questions, replies = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        for blob in blobs:
            questions.write(f"{blob.sha}\n".encode())
            questions.flush()
            head = replies.readline().split()
            if head[-1] == b"missing":
                continue
            data = replies.read(int(head[2]) + 1)[:-1]
            target = to / blob.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        questions.close()


def rows_of(repository: str, folder: Path, commit: str, copies: set[str]) -> Iterator[Row]:
    """Yield the launches of a commit, without those of files whose blob is in `copies`."""
    blobs = list(files_of(folder, commit))
    shas = {each.path: each.sha for each in blobs}
    full, date = git(folder, "log", "-1", "--format=%H %cs", commit).split()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / repository.rpartition("/")[2]
        root.mkdir()
        check_out(folder, blobs, root)
        projects = Projects()
        for path, _ in launch_files([root]):
            inside = path.relative_to(root)
            if LEFT_OUT & set(inside.parts[:-1]) or shas[str(inside)] in copies:
                continue
            if each := usual(path.suffix, answers_of(path, projects)):
                is_library = repository in LIBRARIES
                counted = facts(each)
                yield Row(repository, full, date, str(inside), each.line, is_library, counted)


def answers_of(path: Path, projects: Projects) -> list[AuditFinding]:
    """Return the findings on a file's launches, without the search for a change of each."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if len(text) > LARGEST or (path.suffix == ".py" and not any(name in text for name in PYTHON)):
        return []
    files, name = NeighbourFiles(path, projects), str(path)
    try:
        around = projects.versions(path)
        return [judge(each, launch, name) for launch, each in readings(text, name, files, around)]
    except UnreadableScript:
        return []


def usual(suffix: str, findings: Iterable[AuditFinding]) -> AuditFinding | None:
    """Return the answer that most commands of a file have, the first of equals; None: no launch."""
    own = [
        each
        for each in launches(findings)
        if not (suffix == ".py" and each.library not in PYTHON)
        and not (each.entry_point is None and each.library in COMPOSED)
        and each.entry_point != "sft"
        and not (each.library in CONFIGURED and suffix not in (".yaml", ".yml", ".toml"))
    ]
    counts = Counter(facts(each) for each in own)
    return max(own, key=lambda each: counts[facts(each)], default=None)


def git_folders(root: Path) -> dict[str, Path]:
    """Return repository -> bare git directory, the libraries first."""
    names = {each.name.replace("+", "/", 1): each / "repo" for each in sorted(root.iterdir())}
    ordered = [*LIBRARIES, *(name for name in names if name not in LIBRARIES)]
    return {name: names[name] for name in ordered if (names.get(name) or root / "-").is_dir()}


def collect(root: Path) -> Iterator[Row]:
    """Yield the launches at the head of every repository, each file's content once."""
    copies: set[str] = set()
    folders = git_folders(root)
    for name, folder in folders.items():
        if name in LIBRARIES:
            listed = git(folder, "rev-list", "--objects", "--missing=allow-any", "HEAD")
            copies |= {line.partition(" ")[0] for line in listed.splitlines()}
    for name, folder in folders.items():
        yield from rows_of(name, folder, "HEAD", set() if name in LIBRARIES else copies)
        copies |= {each.sha for each in files_of(folder, "HEAD")}


def trend(root: Path, repositories: Sequence[str]) -> Iterator[Row]:
    """Yield the launches of repositories at the last commit before each date of QUARTERS."""
    folders = git_folders(root)
    for name in repositories:
        for date in QUARTERS:
            listed = git(folders[name], "rev-list", "-1", f"--before={date}T23:59:59Z", "HEAD")
            if commit := listed.strip():
                for row in rows_of(name, folders[name], commit, set()):
                    yield row._replace(date=date)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, one a line."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            plain = {**row._asdict(), **row.facts._asdict()}
            del plain["facts"]
            file.write(json.dumps(plain) + "\n")
            file.flush()


def read(path: Path) -> list[Row]:
    """Return the stored rows."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        plain: dict[str, Any] = json.loads(line)
        counted = {name: plain.pop(name) for name in LaunchFacts._fields}
        counted["faults"] = tuple(counted["faults"])
        rows.append(Row(**plain, facts=LaunchFacts(**counted)))
    return rows


QUESTIONS = ("anchor", "placement", "estimator", "beta")
ALL = "all four"


def answers(counted: LaunchFacts) -> dict[str, object]:
    """Return orch's answers to the questions of a label; none where the KL is not determined.

    A label names the estimator of a KL and not the ratio that weighs it (`rho_`).
    """
    if counted.anchor == UNDETERMINED:
        return dict.fromkeys(QUESTIONS, UNDETERMINED)
    terms = [each.split(" in the ") for each in counted.terms.split(" and ") if " in the " in each]
    return {
        "anchor": counted.anchor,
        "placement": " and ".join(place for _, place in terms) or "none",
        "estimator": " and ".join(name.removeprefix("rho_") for name, _ in terms) or "none",
        "beta": counted.beta,
    }


def without_reference(rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many launches have no KL to a reference, and of how many it is known."""
    known = [each for each in rows if each.facts.anchor != UNDETERMINED]
    return sum(each.facts.anchor != REFERENCE for each in known), len(known)


def by_repository(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each repository, the largest first."""
    groups: dict[str, list[Row]] = {}
    for each in rows:
        groups.setdefault(each.repository, []).append(each)
    return dict(sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])))


def interval(counts: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the 95 % interval of a share whose repositories are drawn anew."""
    every = np.array(counts)
    drawn = np.random.default_rng(SEED).integers(len(every), size=(DRAWS, len(every)))
    count, of = every[drawn].sum(axis=1).T
    low, high = np.quantile(count[of > 0] / of[of > 0], (0.025, 0.975))
    return float(low), float(high)


def span(low: float, high: float) -> str:
    """Return an interval in percent."""
    return f"[{100 * low:.0f}, {100 * high:.0f}]"


def share(rows: Sequence[Row], names: set[str]) -> str:
    """Return the share of launches with one of these anchors, with its interval."""
    counts = [
        (sum(each.facts.anchor in names for each in group), len(group))
        for group in by_repository(rows).values()
    ]
    total = sum(count for count, _ in counts)
    return f"{percent(total, len(rows))} {span(*interval(counts))}"


NOTHING = (NO_BOUND, NEVER_ACTS)
"""Anchors of launches of which nothing but the learning rate bounds a step."""

HEAD = """# What holds the policy in public launches

This page is made by `python -m docs.tools.census` from the answers of `orch audit` to {n} public
launch files of {repositories} repositories; nothing on it was typed in. Each row of
`docs/tools/census_rows/launches.jsonl` is one answer with repository, commit and path, so that any
of them can be looked up. `orch audit --summary FOLDER` makes the same tables of a tree of yours.
"""

RULES = """## How it was counted

- **Repositories**: {libraries} of libraries that orch reads, {research} of research that trains
  with one of them. They were chosen by hand, and all that the choice found count: this is no
  random sample of anything.
- **Launches**: a file counts once, with the answer that most of its commands have in a run without
  arguments. A file that is byte for byte one that a library's repository ever had is the
  library's. Tests, documentation, containers' recipes and configurations on which commands build
  are left out.
- **Interval**: whole repositories are drawn anew ({draws} times), because the files of one are
  much alike. It says how much the numbers hang on these repositories, not what others do.
- **Not determined**: the file alone does not fix its KL. Such launches are in no share of a KL.
"""

HAND_READ = """Drawn at random: {own} of the libraries' own launches and {research} of research. One
reader wrote down anchor, place, estimator and β of each before looking at orch's answer, from the
lines of the file that set KL, loss, clip, weights and batches, from the files that it builds on,
and from the library's defaults. *No answer*: orch says that the file alone, or a fork's own keys,
do not fix it. What orch had wrong led to changes of orch. *Now* is with them, so only *at first*
was measured on launches that had not corrected orch. One drawn file was the configuration of an
inference server, which orch took for a launch; it no longer does, and it is in neither column.
Where the two differ, the reader may be the one who is wrong. The libraries' files were drawn
before launches that only start a counted configuration left the frame: 96 of 105 remain.

"""

TREND_TEXT = """The four repositories with most launches, at the last commit before each date: the
share without a KL to a reference, and how many launches there were. *Dead*: the KL is switched on
and its release computes it without a gradient (SkyRL before 0.2.0), so it holds nothing. Between
the second and the third date verl's recipes moved to a repository of their own, the fourth row.

"""

LIMITS = """## What this cannot show

- An example is not a run. Nobody knows how often a file was run, at what size, or whether it was
  run at all; what was changed on the command line is not in it.
- A repository weighs by its number of files: the column *each repository once* gives the mean of
  the repositories' own shares beside it.
- What was not published is not in it, nor are libraries that orch does not read.
- That a launch has no KL is no mistake. Whether its bound is enough is not counted here.
- The rows were read while orch was being corrected. Where a rule changed, the launches it is about
  were read again, or the rule was applied to their stored facts; the trend has the older reading.
- orch may be wrong: the part on the hand-read sample says how often.
"""


def page() -> str:
    """Return the page as Markdown."""
    rows, labels = read(ROWS), read_labels()
    groups = by_repository(rows)
    libraries = sum(group[0].is_library for group in groups.values())
    parts = [
        HEAD.format(n=f"{len(rows):,}", repositories=len(groups)),
        "\n".join(_first(rows)),
        "## What holds the policy\n",
        _anchors(rows),
        "## The KL terms that act\n",
        _terms(rows),
        "## Old samples\n",
        _regimes(rows),
        "## Over a year\n",
        _trend(read(TREND)),
        "## What is wrong in them\n",
        _faults(rows),
        f"## {len(labels)} of them read by hand\n",
        _hand_read(labels, rows),
        "## Repository by repository\n",
        _repositories(groups),
        RULES.format(libraries=libraries, research=len(groups) - libraries, draws=f"{DRAWS:,}"),
        LIMITS,
    ]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _first(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what a researcher learns, in sentences."""
    known = [each for each in rows if each.facts.anchor != UNDETERMINED]
    counts = [without_reference(group) for group in by_repository(known).values()]
    count, of = without_reference(known)
    without = [each for each in known if each.facts.anchor != REFERENCE]
    anchors = Counter(each.facts.anchor for each in without)
    once = float(np.mean([number / total for number, total in counts if total]))
    names = [f"{name} ({percent(n, len(without))})" for name, n in anchors.most_common(5)]
    yield (
        f"**Of {of:,} public launches whose KL can be read, {percent(count, of)} "
        f"{span(*interval(counts))} have no KL to a reference policy (each repository once: "
        f"{100 * once:.0f} %). What holds those is: "
        f"{', '.join(names)}.**\n"
    )
    nothing = [each for each in without if each.facts.anchor in NOTHING]
    yield (
        f"- {percent(len(nothing), len(without))} of those without a KL make one update a "
        "batch, or have no ratio: no clip acts, and the learning rate alone bounds a step."
    )
    with_kl = [each for each in known if each.facts.anchor == REFERENCE]
    named = [each for each in with_kl if NOT_ITS_NAME in each.facts.faults]
    k3 = [each for each in with_kl if each.facts.terms == "k3 in the loss"]
    yield (
        f"- Of the {len(with_kl):,} with a KL, {percent(len(k3), len(with_kl))} have k3 in the "
        f"loss, whose gradient is a forward KL's; of {percent(len(named), len(with_kl))} the KL "
        "does not do what its name says."
    )
    betas = sorted(each.facts.beta for each in with_kl if each.facts.beta is not None)
    yield (
        f"- The median weight of a KL is {betas[len(betas) // 2]:g}; half of them lie between "
        f"{betas[len(betas) // 4]:g} and {betas[3 * len(betas) // 4]:g}.\n"
    )


def _anchors(rows: Sequence[Row]) -> str:
    known = [each for each in rows if each.facts.anchor != UNDETERMINED]
    groups = by_repository(known).values()
    lines = []
    for name, n in Counter(each.facts.anchor for each in known).most_common():
        own = [sum(each.facts.anchor == name for each in group) / len(group) for group in groups]
        among = sum(1 for each in own if each)
        parts = [_share_of(known, name, is_library) for is_library in (True, False)]
        once = f"{100 * float(np.mean(own)):.0f} %"
        lines.append((name, str(n), share(known, {name}), once, *parts, str(among)))
    titles = ("what holds the policy", "launches", "share [interval]", "each repository once")
    return markdown_table([(*titles, "libraries' own", "research", "repositories"), *lines])


def _share_of(rows: Sequence[Row], name: str, is_library: bool) -> str:
    own = [each for each in rows if each.is_library == is_library]
    return percent(sum(each.facts.anchor == name for each in own), len(own))


def _terms(rows: Sequence[Row]) -> str:
    with_kl = [each for each in rows if each.facts.anchor == REFERENCE]
    lines = []
    for name, n in Counter(each.facts.terms for each in with_kl).most_common():
        group = [each for each in with_kl if each.facts.terms == name]
        betas = sorted(each.facts.beta for each in group if each.facts.beta is not None)
        quarters = [betas[round(q * (len(betas) - 1))] for q in (0.25, 0.5, 0.75)] if betas else []
        does = Counter(WORDS[each.facts.does] for each in group).most_common(2)
        lines.append(
            (
                name,
                str(n),
                percent(n, len(with_kl)),
                " / ".join(f"{each:g}" for each in quarters) or "-",
                "; ".join(f"{words} ({number})" for words, number in does),
                str(len({each.repository for each in group})),
            )
        )
    titles = ("KL term", "launches", "share", "β: quarter / median / three quarters")
    return markdown_table([(*titles, "what it is in its regime", "repositories"), *lines])


def _regimes(rows: Sequence[Row]) -> str:
    lines = []
    for name, n in Counter(each.facts.regime for each in rows).most_common():
        group = [each for each in rows if each.facts.regime == name]
        lines.append((name, str(n), percent(n, len(rows)), percent(*without_reference(group))))
    return markdown_table([("regime", "launches", "share", "no KL to a reference"), *lines])


def _trend(rows: Sequence[Row]) -> str:
    lines = []
    for name, group in by_repository(rows).items():
        cells = []
        for date in QUARTERS:
            at_date = [each for each in group if each.date == date]
            dead = sum(
                each.facts.anchor not in (REFERENCE, UNDETERMINED) and each.facts.terms != NO_TERM
                for each in at_date
            )
            cell = f"{percent(*without_reference(at_date))} of {len(at_date)}" if at_date else "-"
            cells.append(f"{cell}, {dead} of them dead" if dead else cell)
        lines.append((name, *cells))
    return TREND_TEXT + markdown_table([("repository", *QUARTERS), *lines])


def _faults(rows: Sequence[Row]) -> str:
    lines = [
        (
            name,
            str(n),
            percent(n, len(rows)),
            str(len({e.repository for e in rows if name in e.facts.faults})),
        )
        for name, n in Counter(fault for each in rows for fault in each.facts.faults).most_common()
    ]
    return markdown_table([("what", "launches", "share", "repositories"), *lines])


def _hand_read(labels: Sequence[dict[str, Any]], rows: Sequence[Row]) -> str:
    known = {(each.repository, each.path): each for each in rows}
    own = sum(known[each["repository"], each["path"]].is_library for each in labels)
    text = HAND_READ.format(own=own, research=len(labels) - own)
    lines, different = [], []
    for name in (*QUESTIONS, ALL):
        cells = []
        for now in (False, True):
            marks = Counter(_mark(each, name, known, now=now) for each in labels)
            low, high = wilson(marks["right"], len(labels))
            answered = marks["right"] + marks["wrong"]
            of_answers = wilson(marks["right"], answered)
            of_these = f"{percent(marks['right'], answered)} {span(*of_answers)}"
            cells += [
                f"{marks['right']}: {percent(marks['right'], len(labels))} {span(low, high)}",
                f"{marks['right']} of {answered}: {of_these}",
                str(marks["no answer"]),
            ]
        lines.append((name, *cells[:3], *cells[3:5]))
    titles = ("question", "right at first", "of what it answered", "no answer", "right now")
    text += markdown_table([(*titles, "of what it answers now"), *lines])
    for each in labels:
        row = known[each["repository"], each["path"]]
        for name in QUESTIONS:
            if _mark(each, name, known, now=True) == "wrong":
                answer = str(answers(row.facts)[name])
                label = f"`{each['repository']}` {each['path']}"
                different.append((label, name, str(each[name]), answer))
    titles_ = ("launch", "question", "by hand", "orch")
    return f"{text}\nWhere the two still differ:\n\n" + markdown_table([titles_, *different])


def _mark(label: dict[str, Any], name: str, known: dict[tuple[str, str], Row], *, now: bool) -> str:
    """Return whether orch's answer to a question, or to all of them, is that of the label."""
    answer = label["first"]
    if now:
        answer = answers(known[label["repository"], label["path"]].facts)
    names = QUESTIONS if name == ALL else (name,)
    if all(label[each] == answer[each] for each in names):
        return "right"
    silent = {UNDETERMINED, NOT_KNOWN, MAY_ACT}
    return "no answer" if any(answer[each] in silent for each in names) else "wrong"


def _repositories(groups: dict[str, list[Row]]) -> str:
    lines = []
    for name, group in groups.items():
        known = [each for each in group if each.facts.anchor != UNDETERMINED]
        common = Counter(each.facts.anchor for each in known).most_common(2)
        lines.append(
            (
                name,
                f"`{group[0].commit[:9]}` {group[0].date}",
                ", ".join(sorted({each.facts.library for each in group})),
                str(len(group)),
                percent(*without_reference(group)),
                ", ".join(f"{anchor} ({n})" for anchor, n in common),
            )
        )
    titles = ("repository", "commit", "library", "launches", "no KL to a reference")
    return markdown_table([(*titles, "what holds most"), *lines])


def read_labels() -> list[dict[str, Any]]:
    """Return the labels made by hand."""
    return [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        write(ROWS, collect(Path(sys.argv[2])))
    elif sys.argv[1:2] == ["trend"]:
        write(TREND, trend(Path(sys.argv[2]), sys.argv[3:]))
    else:
        sys.stdout.write(page())
