"""A site file's options: plain values, known names, nothing a shell could act on."""

import re
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.spec.site_options import EnvironmentEntry, EvaluationJob, SlurmOptions, faults

META = " ;&|$`\"'\\<>\n\t*?~#{}"


@given(
    st.sampled_from(["partition", "account", "qos", "reservation", "gres", "exclude", "python"]),
    st.sampled_from(META),
    st.integers(0, 3),
)
def test_no_field_takes_what_a_shell_acts_on(field: str, character: str, at: int) -> None:
    plain = "/gpu"[: at + 1] if field == "python" else "gpu"[:at]
    value = f"{plain}{character}x"
    told = [text for text, _ in faults({field: value})]
    assert len(told) == 1
    assert f"site.options.{field}" in told[0]


def test_the_sites_page_describes_every_field() -> None:
    """Its examples hold them all, and are options that orch takes."""
    text = (Path(__file__).parents[3] / "docs" / "slurm.md").read_text()
    blocks = [yaml.safe_load(b) for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    options = [block["options"] for block in blocks if "options" in block]
    assert [list(faults(each)) for each in options] == [[]] * len(options)
    described = {name for each in options for name in each} | set(re.findall(r"`(\w+)", text))
    assert set(SlurmOptions.model_fields) <= described
    entries = [e for each in options for e in each.get("environments", {}).values()]
    assert set(EnvironmentEntry.model_fields) == {name for entry in entries for name in entry}
    (evaluation,) = (each["evaluation"] for each in options if "evaluation" in each)
    assert set(EvaluationJob.model_fields) == set(evaluation)
