"""The table of docs/comedy.md from a measured run.

    orch compare experiments/comedy_full.yaml --json > run.json
    python -m docs.tools.comedy run.json

writes docs/comedy.json, which a test holds to the spec's claims, and the table in docs/comedy.md.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.spec.load import load

DOCS = Path(__file__).parents[1]
SPEC = DOCS.parent / "experiments" / "comedy_full.yaml"
DATA, PAGE = DOCS / "comedy.json", DOCS / "comedy.md"
WORDS = {
    "holds": "holds",
    "contradicted": "contrary",
    "no effect": "no effect above 0.05",
    "seen": "open",
    "too few runs": "open",
    "not testable": "not testable",
}
DECIDED = ("holds", "contradicted", "no effect")
HEAD = "| the paper says | here | what was measured |"
_RESULT = re.compile(r"(.*?) \(\d+ seeds?, ")
_P = re.compile(r"; (p [=<] [\d.e-]+)(?: \(([\d.e<= -]+) corrected)?")


def measured(compared: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the claims of a run, as docs/comedy.json has them."""
    return [
        {
            "name": each["name"],
            "claim": each["claim"],
            "verdict": each["verdict"],
            "result": result(each["reason"]),
        }
        for each in compared["claims"]
    ]


def result(reason: str) -> str:
    """Return the numbers of a reason: both sides, the difference with its interval, corrected p."""
    found, p = _RESULT.match(reason), _P.search(reason)
    if found is None:
        return reason
    corrected = (
        f"p = {p[2]}" if p and p[2] and p[2][0] != "<" else f"p {p[2]}" if p and p[2] else ""
    )
    return f"{found[1]}; {corrected}" if corrected else found[1]


def rows(claims: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the lines of the page's table of decided claims, and the names of the others."""
    says = {each.claim: each.says for each in load(SPEC).published.statements}
    others = [each["name"] for each in claims if each["verdict"] not in DECIDED]
    return [
        HEAD,
        "|---|---|---|",
        *(
            f"| {says[each['name']]} | {WORDS[each['verdict']]} | {each['result']} |"
            for each in claims
            if each["verdict"] in DECIDED
        ),
        "",
        f"Not decided: {', '.join(f'`{name}`' for name in others)}.",
    ]


def counts(claims: Sequence[Mapping[str, str]]) -> str:
    """Return how many claims have which verdict."""
    found = Counter(WORDS[each["verdict"]] for each in claims)
    parts = ", ".join(f"{words} {n}" for words, n in found.items())
    return f"Of {len(claims)} claims: {parts}."


def page(text: str, claims: Sequence[Mapping[str, str]]) -> str:
    """Return the page with the counts and the table of these claims."""
    before = text[: text.index(HEAD)]
    before = re.sub(r"Of \d+ claims: .*?\.$", counts(claims), before, flags=re.MULTILINE)
    return before + "\n".join(rows(claims)) + "\n"


def main() -> None:
    """Write the data and the page."""
    claims = measured(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    DATA.write_text(json.dumps(claims, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), claims), encoding="utf-8")


if __name__ == "__main__":
    main()
