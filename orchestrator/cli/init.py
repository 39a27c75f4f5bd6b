"""orch init: a starter experiment that runs on this machine as it is."""

from pathlib import Path

import click

from orchestrator.errors import OrchError
from orchestrator.rundir import write_text

STARTER = """\
# A starter experiment. It runs on this machine as it is, at micro scale:
#
#   orch plan {name}.yaml
#   orch run {name}.yaml
#
# Every field is described by `orch schema`.

name: {name}
question: Does k1-in-reward reach a higher accuracy than k3-in-loss at the same beta?
seeds: [0, 1, 2]

studies:
  estimators:
    title: Two estimators at two strengths, beside no KL at all
    base:
      model: {{name: my-model, path: Qwen/Qwen2.5-7B}}
      data: {{name: math, path: DigitalLearningGmbH/MATH-lighteval, num_prompts: 7500}}
      advantage: {{estimator: rloo}}
      loss: {{aggregation: token_mean}}
      rollout: {{group_size: 5, max_response_tokens: 1024}}
      batch: {{num_prompts: 256}}
      optimizer: {{learning_rate: 1.0e-6}}
      num_train_steps: 250
      backend: {{name: verl}}
    axes:
      kl:
        - {{estimator: none}}
        - product: {{estimator: [k1], placement: [reward], beta: [0.1, 0.3]}}
        - product: {{estimator: [k3], placement: [loss], beta: [0.1, 0.3]}}

claims:
  k1_reward_scores_higher: >-
    eval/accuracy_in_domain[kl=k1.reward] > eval/accuracy_in_domain[kl=k3.loss]
    at beta in [0.1, 0.3]
"""


@click.command(short_help="Write a starter experiment.")
@click.argument("path", default="experiment.yaml", type=click.Path(path_type=Path))
def command(path: Path) -> None:
    """Write a starter spec to PATH (default experiment.yaml). Never overwrites a file."""
    if path.suffix != ".yaml":
        path = path.with_name(path.name + ".yaml")
    if path.exists():
        raise OrchError(f"{path} exists; choose another name: orch init NAME.yaml")
    write_text(path, STARTER.format(name=path.stem))
    click.echo(f"wrote {path}. Next: orch plan {path}")
