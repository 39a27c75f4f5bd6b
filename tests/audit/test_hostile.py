"""No text gives a traceback, takes longer than a second, or is run."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.scripts import USE_LOSS, VERL
from orchestrator.audit import UnreadableScript, audit

NAMES = ("x.sh", "x.yaml", "x.toml", "x.py", "x")
LAUNCH = f"{VERL} {USE_LOSS}=True "
HOSTILE = {
    "empty": "",
    "unbalanced": LAUNCH + '"abc\n`x',
    "nested if": "if a; then\n" * 3000 + LAUNCH,
    "nested (": "(" * 5000 + LAUNCH,
    "nested $(": "$(" * 3000 + LAUNCH,
    'nested "$(': '"$(' * 2000 + LAUNCH,
    "nested ${": "X=" + "${A:-" * 3000 + LAUNCH,
    "nested [": "[" * 30000,
    "nested {": "a: " + "{a: " * 3000,
    "nested -": "- " * 5000 + "a",
    "forks": "\n".join(f"if [ -f {i} ]; then K=$K$K{i}; else K=x$K; fi" for i in range(200))
    + f"\n{LAUNCH} a=$K",
    "doubling": "A=xxxxxxxx\n" + "A=$A$A\n" * 60 + LAUNCH + "x=$A",
    "doubling array": "A=(a)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60 + LAUNCH + '"${A[@]}"',
    "recursion": f"f() {{ f; f; }}\nf\n{LAUNCH}",
    "eval": 'X=\'eval "$X"; eval "$X"\'\neval "$X"\n' + LAUNCH,
    "loops": "\n".join(f"for a{i} in 1 2 3 4 5 6 7 8 9; do" for i in range(9)) + f"\n{LAUNCH}",
    "power": "A=$((2**2**2**2**2**62))\n" + LAUNCH,
    "range": f"for i in {{1..999999999}}; do {LAUNCH}; done",
    "recursion of arguments": f'f() {{ f "$@" $1$1; f $1; }}\nf a b\n{LAUNCH}',
    "nested loops that start": "\n".join(f"for a{i} in 1 2 3 4 5 6 7 8 9; do" for i in range(5))
    + f"\n{LAUNCH} x=$a0$a4\n"
    + "done\n" * 5,
    "closing brackets": f"export X{')' * 3000}\\\n{')' * 1400}[{')' * 400}\n" * 20,
    "blank lines": " \n" * 60_000 + LAUNCH,
    "a pattern to match": f"a={'a' * 100}\nif [[ $a =~ {'(a|a)' * 32}b ]]; then x=1; fi\n{LAUNCH}",
    "a pattern to cut": "a=" + "x" * 20_000 + "\nb=${a%%*y*y*y*y}\n" + LAUNCH,
    "names in arithmetic": "x=$((" + "+".join(f"a{i}" for i in range(20_000)) + "))\n" + LAUNCH,
    "long entry points": "\n".join(
        f"python {w * 9000} @ a.toml"
        for w in ("prime_rl/", "train_ppo", "verl.trainer.main", "/recipe/a")
    ),
    "words that refer to words": "\n".join(
        f"v{i}=" + "".join(f"$v{j}" for j in range(max(0, i - 20), i)) for i in range(1, 1500)
    )
    + f"\n{LAUNCH}a=$v1499",
    "lists of lists": "a0 = ['python', '-m', 'verl.trainer.main_ppo']\n"
    + "\n".join(f"a{i} = [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)),
    "a header in a string": "x = '''\n[" + " " * 60_000 + "\n'''\n[orchestrator]\nbatch_size = 1",
    "alias bomb": "a: &a [x]\n"
    + "\n".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [" + ", ".join([f"*{chr(97 + i)}"] * 9) + "]"
        for i in range(12)
    ),
}


def told(text: str, name: str) -> float:
    """CPU seconds of an audit, which may only answer or refuse in a sentence."""
    start = time.process_time()
    try:
        for each in audit(text, name):
            assert each.why
    except UnreadableScript:
        pass
    return time.process_time() - start


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Grammars and verdicts are loaded once, before anything is timed."""
    told(LAUNCH, "x.sh")
    told("[slurm]\n", "x.toml")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_bounded(kind: str, name: str) -> None:
    assert told(HOSTILE[kind], name) < 10  # a second on a machine that does nothing else


def test_ten_megabytes_are_refused_at_once() -> None:
    with pytest.raises(UnreadableScript, match="10,000,000 characters"):
        audit("a" * 10_000_000, "x.sh")


@pytest.mark.parametrize("text", ["\x00\x01\x02" * 50, "\ufffd" * 400])
def test_binary_files_are_refused(text: str) -> None:
    with pytest.raises(UnreadableScript, match="binary"):
        audit(text, "x.sh")


def test_nothing_is_ever_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "ran"
    text = f'X=$(touch {mark}; rm -rf {tmp_path})\n`touch {mark}`\neval "touch {mark}"\n{LAUNCH}$X'
    assert audit(text, "x.sh")
    assert audit(f"a: $(touch {mark})\nrun: |\n  touch {mark}\n  {LAUNCH}\n", "x.yaml")
    assert not mark.exists()
    assert list(tmp_path.iterdir()) == []


PIECES = st.sampled_from(
    [
        LAUNCH,
        "if ",
        "then\n",
        "fi\n",
        "else\n",
        "case $1 in\n",
        "esac\n",
        ";;",
        "for x in a b; do\n",
        "done\n",
        "$(",
        ")",
        "((",
        "))",
        "${",
        "}",
        "${X:-",
        "[@]",
        "[[ ",
        " ]]",
        "[ ",
        " ]",
        '"',
        "'",
        "`",
        "\\\n",
        "\n",
        " ",
        "&&",
        "||",
        "|",
        "<<EOF\n",
        "EOF\n",
        "eval ",
        "X=",
        "X+=(",
        "$X",
        "$1",
        '"$@"',
        "bash -c ",
        "f() {",
        "f\n",
        "set -- a b\n",
        "shift\n",
        f"{USE_LOSS}=$X ",
        "#",
        "\t",
        "while ",
        "do\n",
        "exit\n",
        "=~",
        "!",
        "{1..9}",
        "$((",
        "1+",
        "\x00",
        "é",
        "\r\n",
        ": ",
        "- ",
        "[trainer.loss]\n",
        "kl_tau = ",
        "run: |\n  ",
        "--init_kl_coef ",
        "python train_ppo_ray.py ",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join), st.sampled_from(NAMES))
def test_any_mixture_of_shell_is_answered_or_refused(text: str, name: str) -> None:
    assert told(text, name) < 3


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300), st.sampled_from(NAMES))
def test_any_text_is_answered_or_refused(text: str, name: str) -> None:
    assert told(LAUNCH + text, name) < 3


@pytest.mark.parametrize("character", ["\U000c703e", "\U0001f600", "\u3000", "é"])
def test_a_character_beyond_ascii_does_not_end_the_process(character: str) -> None:
    """The grammar's scanner read behind a table of C's, and the whole command died."""
    text = f"NAME=a{character}b\n{{{character}\n}}\n{LAUNCH} trainer.name=$NAME{character}c\n"
    for _ in range(40):
        (finding,) = audit(text, "a.sh")
    given = {each.key: each.value for each in finding.settings}
    assert given["actor_rollout_ref.actor.use_kl_loss"].lower() == "true"
