"""Every command that a document shows is run, in order, in a copy of the experiments."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from command_line import orch
from lifeline import first_page, free_port, held, let_go

from orchestrator.cli.conventions import EXIT_CODES
from orchestrator.kl.verdicts import verdict
from orchestrator.settings import Kl, Placement

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
FRONT_PAGE = ROOT / "README.md"
"""Its commands are the installed programs, as a person starts them; other pages' fork."""
DOCUMENTS = [
    FRONT_PAGE,
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "experiments" / "README.md",
]
ON_A_CLUSTER = ROOT / "docs" / "slurm.md"
"""tests/launch/slurm/test_command_line.py runs what it shows."""
SHOWN = [
    document
    for document in DOCUMENTS
    if document != ON_A_CLUSTER and "```console" in document.read_text("utf-8")
]

RUN_BY_CI = {"python3 bootstrap.py run", "python3 bootstrap.py test"}
"""CI is the second; the first is the comedy grid, which tests/test_comedy.py runs with one seed."""

pytestmark = [pytest.mark.slow, pytest.mark.long(100), pytest.mark.timeout(1800)]


def commands(document: Path) -> list[str]:
    text = document.read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def environment() -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"} | {"PATH": path}


def serve(argv: list[str], folder: Path) -> None:
    """A server answers its first page, and is stopped."""
    port = free_port()
    server = held(
        [*argv, "--port", str(port)],
        cwd=folder,
        env=environment() | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        first_page(f"http://127.0.0.1:{port}/", server)
    finally:
        let_go(server)


def test_documents_show_commands() -> None:
    assert sum(len(commands(document)) for document in DOCUMENTS) > 15


@pytest.fixture(scope="module")
def workspace(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all documents: what one of them trained, the next need not.

    Its smoke.yaml has two of the four cells, and all four are trained.
    """
    folder = tmp_path_factory.mktemp("documents") / "a person's folder"
    shutil.copytree(finished, folder)
    smoke = folder / "experiments" / "smoke.yaml"
    text = smoke.read_text(encoding="utf-8")
    fewer = re.sub(r"\n +- .*(k1|both|reward_and_loss), .*", "", text)
    assert fewer.count("placement:") == 1
    smoke.write_text(fewer, encoding="utf-8")
    return folder


def test_the_readme_is_a_front_page() -> None:
    text = FRONT_PAGE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert "](docs/pictures/" in text
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in text.replace("`", "")


@pytest.mark.parametrize("document", SHOWN, ids=lambda d: str(d.relative_to(ROOT)))
def test_every_command_shown_works(document: Path, workspace: Path) -> None:
    for line in commands(document):
        if line in RUN_BY_CI:
            continue
        argv = shlex.split(line)
        if argv[:2] == ["mlflow", "ui"]:
            serve(argv, workspace)
            continue
        done = (
            orch(workspace, *argv[1:], PATH=environment()["PATH"])
            if argv[0] == "orch" and document != FRONT_PAGE
            else subprocess.run(
                argv,
                cwd=workspace,
                env=environment(),
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=600,
            )
        )
        tells = argv[:2] == ["orch", "plan"] or {"--dry-run", "--to"} & {*argv}
        expected = (0, 3) if tells else (0,)
        if tells and "CANNOT WORK  cadence: checkpoints take" in done.stdout + done.stderr:
            expected = (1,)  # a machine with SLURM and a small disk
        assert done.returncode in expected, f"$ {line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"$ {line}\n{done.stderr}"
        assert done.stdout.strip() or done.stderr.strip(), f"$ {line} said nothing"


def test_every_link_of_a_document_leads_somewhere() -> None:
    for document in [*DOCUMENTS, *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_no_document_has_what_only_the_site_fills_in() -> None:
    assert not [each.name for each in DOCUMENTS if "{{ " in each.read_text(encoding="utf-8")]


def test_the_table_of_verdicts_is_what_explain_says() -> None:
    text = (ROOT / "docs" / "explanation.md").read_text(encoding="utf-8")
    for estimator in ("k1", "k2", "k3"):
        for place in get_args(Placement)[:2]:
            kl = Kl(estimator=estimator, placement=place, beta=1.0)
            term, _, said = verdict(kl, on_policy=True).summary.partition(": ")
            assert f"| {term} | {said} |" in text, (term, said)
