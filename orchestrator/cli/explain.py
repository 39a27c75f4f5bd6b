"""orch explain: the objective a KL configuration really optimises."""

from collections.abc import Mapping
from typing import Any, get_args

import click

from orchestrator import plugins
from orchestrator.cli import common
from orchestrator.cli.common import print_json, print_table
from orchestrator.cli.exact import print_exact
from orchestrator.cli.kl_in_libraries import print_libraries
from orchestrator.cli.own import print_own
from orchestrator.errors import did_you_mean
from orchestrator.estimators import NONE, choices, entry
from orchestrator.kl.table import GROUP_SIZE
from orchestrator.kl.verdicts import (
    COLUMNS,
    FORM_COLUMNS,
    PLACEMENTS,
    SYMBOLS,
    behind,
    every_explanation,
    explanation,
    form_caption,
    form_rows,
    summary_row,
)
from orchestrator.logs.names import explained_metrics
from orchestrator.losses.table import ALSO, POLICY_LOSSES, policy_loss_entry
from orchestrator.pipeline.messages import is_verbose
from orchestrator.settings import AdvantageEstimator


def _policy_loss(word: str) -> tuple[str, str | None] | None:
    """Return a policy loss and the KL estimator beside it, of `cispo+k3` both; else None."""
    name, plus, estimator = word.partition("+")
    is_one = estimator in choices() and estimator != NONE and entry(estimator).is_of_a_token
    if name not in {*POLICY_LOSSES, *ALSO} or (plus and not is_one):
        return None
    return name, estimator or None


def _estimator(ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Return the name of an estimator or policy loss; of a library's name for it, ours.

    Raise click.UsageError with the names there are.
    """
    if value is None or _policy_loss(value) is not None or value in choices() or "@" in value:
        return value
    name, _, place = value.partition(".")
    if name in choices() and place in PLACEMENTS:  # `k3.loss`, as plans and pages say
        return value
    theirs = plugins.estimator_names()
    if value in theirs:
        return theirs[value]
    near = did_you_mean(name, (*choices(), *POLICY_LOSSES)) or did_you_mean(value, theirs)
    listed = near or " (orch explain --all lists them)"
    raise click.UsageError(f"'{value}' is no estimator and no policy loss{listed}", ctx)


@click.command(short_help="Say what a KL term or a policy loss really does, also in each library.")
@click.argument("estimator", callback=_estimator, required=False)
@click.argument(
    "placement", type=click.Choice(list(PLACEMENTS)), required=False, metavar="[PLACEMENT]"
)
@click.option("--all", "everything", is_flag=True, help="Every estimator, placement and sampling.")
@click.option(
    "--off-policy", is_flag=True, help="For training on old samples (minibatches, staleness)."
)
@click.option(
    "--advantage",
    type=click.Choice(get_args(AdvantageEstimator)),
    default="rloo",
    show_default=True,
    help="How advantages are computed from rewards.",
)
@click.option(
    "--group-size", type=click.IntRange(min=2), help="G, the number of rollouts for each prompt."
)
@click.option(
    "--ratio",
    type=click.Choice(["token", "sequence"]),
    default="token",
    show_default=True,
    help="Importance ratio of the policy-gradient term, and of a rho estimator in the loss.",
)
@click.option(
    "--reward-kl-of",
    type=click.Choice(["rollout", "policy"]),
    default="rollout",
    show_default=True,
    help="Whose log-probabilities the KL in the reward is computed from: the "
    "rollout policy's, as libraries do, or the policy's (paper eq. 7).",
)
@click.option(
    "--libraries",
    is_flag=True,
    help="Print what each KL term is in each library and release, measured in its own code.",
)
@click.option(
    "--library",
    "wanted",
    multiple=True,
    metavar="LIBRARY[@VERSION]",
    help="With --libraries: only this library, or this release. May be given several times.",
)
@click.option(
    "--of",
    "own",
    metavar="PATH.py:FUNCTION",
    help="Run your own loss, advantage or KL (or package.module:function), and say what it "
    "optimises. It runs your code, in a process of its own.",
)
@click.option(
    "--call",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="--of: what a parameter is (lp=log_prob), or its value (beta=0.1). May be repeated.",
)
@click.option(
    "--python", metavar="PYTHON", help="--of: the interpreter that runs it; it has torch."
)
@click.option(
    "--exact",
    is_flag=True,
    help="Compute bias and variance of every gradient on the paper's model (Fig. 1).",
)
@common.as_json
def command(
    estimator: str | None,
    placement: str | None,
    everything: bool,
    libraries: bool,
    wanted: tuple[str, ...],
    own: str | None,
    given: tuple[str, ...],
    python: str | None,
    exact: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Say which objective a KL term's gradient belongs to (k3.loss), or what a policy loss keeps of
    the gradient (gspo; beside a KL in the loss: cispo+k3), how biased it is, and what to use
    instead. -v prints the equation, the numbers and how they were checked.

    Or explain what a library logs under a name: METRIC@LIBRARY; @LIBRARY lists all its metrics.

    \b
      orch explain k3.loss
      orch explain ppo_kl@verl
      orch explain gspo
      orch explain cispo+k3
      orch explain k1.reward --off-policy --advantage grpo --group-size 8
      orch explain --all
      orch explain --libraries --library verl@0.9.1
      orch explain --exact
      orch explain --of losses.py:my_loss
    """
    if exact:
        print_exact(estimator, as_json=as_json)
        return
    estimator, placement = _of_label(estimator, placement)
    if own is not None:
        print_own(own, given, python, as_json=as_json)
        return
    if libraries:
        print_libraries(wanted, as_json=as_json, off_policy=how["off_policy"])
        return
    if wanted or given or python:
        raise click.UsageError("--library needs --libraries; --call and --python need --of")
    if everything:
        _print_all(as_json, **how)
        return
    if estimator is not None and "@" in estimator:
        if placement is not None:
            raise click.UsageError(f"'{estimator}' is a logged name: no placement")
        _print_logged(estimator, as_json)
        return
    of_loss = None if estimator is None else _policy_loss(estimator)
    if of_loss is not None:
        if placement is not None:
            raise click.UsageError(f"'{estimator}' is a policy loss, and takes no placement")
        _explain_loss(*of_loss, as_json)
        return
    if estimator is None:
        raise click.UsageError("give a KL term (orch explain k3.loss), or --all")
    explained = explanation(estimator, placement, **how)
    if as_json:
        print_json(explained)
    else:
        _print_one(explained)


def _of_label(estimator: str | None, placement: str | None) -> tuple[str | None, str | None]:
    """Return estimator and placement of `k3.loss`, else both as they are.

    Raise UsageError for an estimator without a placement, or with two.
    """
    if estimator is None or "@" in estimator:
        return estimator, placement
    name, dot, place = estimator.partition(".")
    if dot and placement in (None, place):
        return name, place
    if dot:
        raise click.UsageError(f"'{estimator}' names its placement: leave '{placement}' out")
    if placement is not None:
        return estimator, placement
    if estimator != NONE and _policy_loss(estimator) is None:
        raise click.UsageError(
            f"give a placement too: orch explain {estimator}.loss, or {estimator}.reward"
        )
    return estimator, None


_OLD = "the policy that sampled (with loss.correction: to the proximal policy)"


def _explain_loss(name: str, estimator: str | None, as_json: bool) -> None:
    """Print what a policy loss keeps of the gradient, and what it makes of a KL in the loss."""
    from orchestrator.exact import policy_losses

    name, also = ALSO.get(name, (name, ""))
    loss = policy_loss_entry(name)
    pull = f"the gradient points back to {_OLD}" if loss.pulls_back else f"none to {_OLD}"
    answer = {
        "is": loss.title,
        **({"also": also} if also else {}),
        "pull back": pull,
        "keeps": loss.keeps,
        "bounds": loss.bounds_in_words or "none",
        "instead": loss.instead,
    }
    behind = {
        "loss": loss.formula,
        "aggregated": loss.aggregation or "as loss.aggregation says",
        "source": loss.source,
        "libraries": "; ".join(f"{where}: {what}" for where, what in loss.files.items()),
        "exact": policy_losses.SETTING,
    }
    columns = (*policy_losses.COLUMNS, *([f"β of {estimator} counts"] if estimator else []))
    rows = list(policy_losses.rows(loss, estimator))
    if as_json:
        table = [dict(zip(columns, row, strict=True)) for row in rows]
        print_json({"name": name, **answer, **behind, "effect": table})
        return
    for label, text in answer.items():
        click.echo(common.hanging(label, text or "none"))
    click.echo()
    print_table(columns, rows)
    click.echo(common.wrapped(policy_losses.caption(loss)))
    click.echo()
    if not is_verbose():
        click.echo("-v: formula, aggregation, source, libraries, and what the table is computed on")
        return
    for label, text in behind.items():
        click.echo(common.hanging(label, text))


def _print_logged(name: str, as_json: bool) -> None:
    """Print what `kl@trl` means, or each name of `@trl`."""
    rows = explained_metrics(name)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        where = f" ({row['where']})" if row["where"] else ""
        click.echo(f"{row['name']} of {row['library']}{where}")
        click.echo(common.hanging("means", row["meaning"]))
        if row["ours"]:
            click.echo(common.hanging("orch", row["ours"]))
        if row["source"]:
            click.echo(common.hanging("read in", row["source"]))


def _print_one(explained: Mapping[str, Any]) -> None:
    """Print the answer, and with -v what is behind it."""
    click.echo(common.wrapped(explained["summary"]))
    click.echo(common.wrapped(f"In plain words: {explained['plain']}"))
    click.echo(common.hanging("advice", explained["advice"]["text"]))
    for note in explained["notes"]:
        click.echo(common.hanging("note", note))
    if rows := form_rows(explained):
        click.echo()
        print_table(FORM_COLUMNS, rows)
        click.echo(common.wrapped(form_caption(explained)))
    click.echo()
    if not is_verbose():
        click.echo("-v: equation, bias, reasons, checks")
        return
    for label, text in behind(explained):
        click.echo(common.hanging(label, text))
    click.echo("\n" + SYMBOLS)


def _print_all(as_json: bool, *, ratio: str, **how: Any) -> None:
    if ratio != "token":
        raise click.UsageError("--all lists the token ratio; ask for one estimator with --ratio")
    explanations = every_explanation(ratio=ratio, **how)
    if as_json:
        print_json(explanations)
        return
    print_table(COLUMNS, map(summary_row, explanations))
    click.echo("\n" + SYMBOLS)
    click.echo("Bias: on the paper's small model; of one term, `explain` has medians over models.")
    if how["advantage"] in ("grpo", "dr_grpo") and how["group_size"] is None:
        click.echo(f"Numbers of sums with a = 1 - 1/G are of G = {GROUP_SIZE}: --group-size.")
    if how["advantage"] == "grpo":
        click.echo("Noise of a KL in the reward is that before the group's deviation divides it.")
    for condition in dict.fromkeys(text for each in explanations for text in each["checked"]):
        click.echo(common.hanging("checked", condition))
