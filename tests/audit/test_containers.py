"""Programs that YAML files start in containers: lists of words, environments, templates."""

import pytest
import yaml

from audit.scripts import COEFFICIENT, TYPE, USE_LOSS, only
from orchestrator.audit import audit
from orchestrator.audit.documents import container_scripts

WORDS = ["python3", "-m", "verl.trainer.main_ppo", f"{USE_LOSS}=True"]
JOB = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      initContainers:
        - {name: fetch, command: [sh, -c, "cp -r /data /scratch"]}
      containers:
        - name: trainer
          command: [python3, -m, verl.trainer.main_ppo]
          env:
            - {name: ESTIMATOR, value: mse}
            - name: BETA
              valueFrom: {configMapKeyRef: {name: settings, key: beta}}
          args:
"""


def job(*words: str) -> str:
    return JOB + "".join(f"            - {word}\n" for word in words)


def test_words_of_a_job_keep_their_lines() -> None:
    finding = only(job(f"{USE_LOSS}=True", f"{COEFFICIENT}=0.01", f"{TYPE}=kl"), "job.yaml")
    assert finding.term_verdict == "zero_mean_noise"
    assert finding.line == 14
    lines = {each.key: each.lines for each in finding.settings}
    assert lines[TYPE] == (22,), "the line of the last word"


def test_a_reference_to_a_known_variable_is_expanded() -> None:
    finding = only(job(f"{USE_LOSS}=True", f"{TYPE}=$(ESTIMATOR)"), "job.yaml")
    assert finding.kl_in_loss is not None
    assert finding.kl_in_loss.estimator == "k2"


@pytest.mark.parametrize(
    "unknown", ["$(BETA)", "$(NOWHERE)", "{{ .Values.beta }}", "${{ inputs.beta }}"]
)
def test_what_the_cluster_fills_in_is_not_known(unknown: str) -> None:
    text = job(f"'{USE_LOSS}=True'", f"'{TYPE}=kl'", f"'{COEFFICIENT}={unknown}'")
    finding = only(text, "job.yaml")
    assert finding.confidence != "certain"
    assert finding.verdict == "undetermined"


def test_a_shell_in_a_container_has_the_containers_environment() -> None:
    script = f'["bash", "-c", "python3 -m verl.trainer.main_ppo {USE_LOSS}=True {TYPE}=$KIND"]'
    text = f"containers:\n  - env: [{{name: KIND, value: mse}}]\n    command: {script}\n"
    finding = only(text, "pod.yml")
    assert finding.kl_in_loss is not None
    assert finding.kl_in_loss.estimator == "k2"


def test_a_block_in_a_list_keeps_its_lines() -> None:
    head = "containers:\n  - command: [/bin/bash, -c]\n    args:\n      - |\n        cd /x\n"
    text = (
        head + f"        python3 -m verl.trainer.main_ppo {USE_LOSS}=True \\\n          {TYPE}=kl\n"
    )
    finding = only(text, "pod.yml")
    assert (finding.term_verdict, finding.line) == ("zero_mean_noise", 6)


def test_compose_reads_entrypoint_and_command() -> None:
    text = yaml.safe_dump(
        {
            "services": {
                "t": {"command": [f"{TYPE}=kl", f"{USE_LOSS}=True"], "entrypoint": WORDS[:3]}
            }
        }
    )
    assert only(text, "compose.yaml").term_verdict == "zero_mean_noise"


def test_the_shell_expands_nothing_in_a_list() -> None:
    """Kubernetes starts the program without a shell: `$KIND` is these five characters."""
    text = f"env: {{KIND: mse}}\ncommand: {[*WORDS, f'{TYPE}=$KIND']}\n"
    findings = audit(text, "pod.yaml")
    assert all(each.confidence != "certain" for each in findings)


def test_two_containers_are_two_launches() -> None:
    one, two = ([*WORDS, f"{TYPE}={each}"] for each in ("kl", "mse"))
    text = f"containers:\n  - command: {one}\n  - command: {two}\n"
    assert [each.term_verdict for each in audit(text, "pod.yaml")] == [
        "zero_mean_noise",
        "token_reverse_kl",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "command: []",
        "command: [[a, b], c]",
        "command: {a: b}",
        "args: [1, 2.5, null, true]",
        "env: [a, {name: [x]}, {value: 3}, null]\ncommand: [x]",
        "command: ['a\x00b', '$$(X)', '$()', '$(', '{{']",
    ],
)
def test_nothing_in_a_yaml_breaks_the_reader(text: str) -> None:
    for script in container_scripts(yaml.compose(text.replace("\x00", ""))):
        assert isinstance(script.text, str)
