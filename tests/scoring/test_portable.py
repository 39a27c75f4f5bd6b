"""The package as it travels with a launch: for any Python of a trainer, without us."""

import ast
import hashlib
import sys

import pytest

from orchestrator.scoring import MODULES, PACKAGE, VERSIONS, files

PACKAGES = {
    "math_boxed": {"math_verify", "latex2sympy2_extended", "sympy"},
    "reasoning_gym": {"reasoning_gym"},
}
"""What a rule needs beside Python: one package, and what comes with it."""


@pytest.mark.parametrize("rule", MODULES)
def test_it_is_what_the_oldest_python_of_a_trainer_reads(rule: str) -> None:
    imported: set[str] = set()
    for name, text in files(rule).items():
        assert name.startswith(f"{PACKAGE}/")
        for node in ast.walk(ast.parse(text, name, feature_version=(3, 10))):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module or "")
    tops = {name.partition(".")[0] for name in imported}
    assert tops <= sys.stdlib_module_names | PACKAGES.get(rule, set())


FILES = {
    ("math_boxed", 2): "fc411428b356",
    ("countdown", 1): "df1b3e4dd73b",
    ("exact", 1): "9694ad008c5c",
    ("reasoning_gym", 1): "6e6c62857911",
}
"""(Rule, version) -> digest of its code, without comments and layout."""


@pytest.mark.parametrize("rule", MODULES)
def test_another_scorer_has_another_version(rule: str) -> None:
    """Where this fails: raise VERSIONS[rule] if some response now has another reward. Then write
    the digest anew."""
    code = "\n".join(ast.unparse(ast.parse(text)) for _, text in sorted(files(rule).items()))
    digest = hashlib.sha256(code.encode()).hexdigest()[:12]
    assert digest == FILES.get((rule, VERSIONS.get(rule, 1)))
