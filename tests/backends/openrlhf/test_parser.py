"""The contract: the library's own parser, of each release, on what we give it."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from backends.openrlhf import BACKEND
from backends.openrlhf.flags import FLAT, FLAT_NAMES, NEWEST, VERSIONS, read, release_table
from orchestrator.errors import Fault, SpecError, UnsupportedSetting
from orchestrator.identity import fingerprint
from orchestrator.records import Cell, LaunchPlan
from tests.backends.openrlhf.cells import PLACE, asked_of_library, base, cell_of, drawn, shipped


def translated(cells: tuple[Cell, ...]) -> list[tuple[Cell, LaunchPlan]]:
    made = []
    for cell in cells:
        try:
            made.append((cell, BACKEND.translate(cell, PLACE)))
        except UnsupportedSetting:
            continue
    return made


def leaf(args: Mapping[str, Any], name: str, version: str) -> Any:
    """A parsed value by its dotted name."""
    if version == FLAT:
        return args[FLAT_NAMES[name]]
    value: Any = args
    for part in name.split("."):
        value = value[part]
    return value


def optimizer_steps(args: Mapping[str, Any], version: str) -> float:
    """The trainer's own count: ppo_trainer.prepare_datasets, from which the learning rate's
    horizon is made; and, for whole batches, the updates it makes."""
    get = lambda name: leaf(args, name, version)  # noqa: E731  (one line says it)
    rows = get("data.max_samples")
    assert rows % get("rollout.batch_size") == 0, "the last batch would be short"
    steps: float = (
        rows
        * get("rollout.n_samples_per_prompt")
        // get("train.batch_size")
        * get("train.num_episodes")
        * get("train.max_epochs")
    )
    return steps


@pytest.mark.parametrize("version", VERSIONS)
def test_the_library_accepts_every_shipped_cell_that_we_accept(version: str) -> None:
    made = translated(shipped(version))
    assert len(made) > 100
    answers = asked_of_library(version, [plan.argv for _, plan in made])
    for (cell, plan), answer in zip(made, answers, strict=True):
        assert "error" not in answer, f"{cell.slug}: {answer['error']}"
        given = read(plan.argv, []).given
        assert given
        agree(given, answer["values"], version)
        assert optimizer_steps(answer["values"], version) == cell.settings.num_train_steps
        assert fingerprint(BACKEND.parse(plan.argv, plan.files)) == cell.id, cell.slug


def agree(given: Mapping[str, Any], args: Mapping[str, Any], version: str) -> None:
    """The library read each of our flags as we mean it."""
    for name, value in given.items():
        theirs = leaf(args, name, version)
        if name == "reward.remote_url":
            theirs = ",".join(theirs)
        assert theirs == (list(value) if isinstance(value, tuple) else value), name


@pytest.mark.parametrize("version", VERSIONS)
def test_the_library_accepts_drawn_cells(version: str) -> None:
    cells: list[Cell] = []

    @settings(
        max_examples=60,
        deadline=dt.timedelta(seconds=2),
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn(version))
    def collect(cell: Cell) -> None:
        cells.append(cell)

    collect()
    made = translated(tuple(cells))
    assert len(made) > 20
    answers = asked_of_library(version, [plan.argv for _, plan in made])
    for (cell, plan), answer in zip(made, answers, strict=True):
        assert "error" not in answer, answer.get("error")
        agree(read(plan.argv, []).given, answer["values"], version)
        assert optimizer_steps(answer["values"], version) == cell.settings.num_train_steps


@pytest.mark.parametrize("version", VERSIONS)
def test_defaults_and_names_are_the_library_s_own(version: str) -> None:
    """An empty launch is refused by neither parser; its values are our table's defaults."""
    few = ("python3", "-m", "openrlhf.cli.train_ppo_ray", *minimal(version))
    answer = asked_of_library(version, [few])[0]
    assert "values" in answer, answer
    given = set(read(few, []).given)
    for name, default in release_table(version).defaults.items():
        if name in given or default is None or name == "reward.remote_url":
            continue
        theirs = leaf(answer["values"], name, version)
        assert theirs == (list(default) if isinstance(default, tuple) else default), name


def minimal(version: str) -> tuple[str, ...]:
    dotted = (
        "--algo.advantage.estimator",
        "rloo",
        "--rollout.n_samples_per_prompt",
        "2",
        "--reward.remote_url",
        "/r.py",
        "--vllm.num_engines",
        "8",
    )
    if version != FLAT:
        return dotted
    return tuple(f"--{FLAT_NAMES[word[2:]]}" if word.startswith("--") else word for word in dotted)


def test_each_release_refuses_the_names_of_the_other() -> None:
    by_version = {
        v: BACKEND.translate(cell_of(base(backend={"version": v})), PLACE).argv for v in VERSIONS
    }
    for version, other in ((NEWEST, FLAT), (FLAT, NEWEST)):
        answer = asked_of_library(version, [by_version[other]])[0]
        assert "unrecognized arguments" in answer["error"]


class TestSilentAcceptance:
    """What the library takes without a word, and we do not."""

    def test_reward_and_loss_loses_the_kl_in_the_reward(self) -> None:
        settings = base(kl={"placement": "reward_and_loss"})
        with pytest.raises(UnsupportedSetting, match=r"kl\.placement=reward_and_loss"):
            BACKEND.translate(cell_of(settings), PLACE)

    def test_an_abbreviated_flag_is_read_as_the_library_reads_it(self) -> None:
        plan = BACKEND.translate(cell_of(base()), PLACE)
        short = tuple("--algo.kl.est" if x == "--algo.kl.estimator" else x for x in plan.argv)
        assert asked_of_library(NEWEST, [short])[0]["values"]["algo"]["kl"]["estimator"] == "k1"
        assert BACKEND.parse(short, plan.files) == BACKEND.parse(plan.argv, plan.files)

    def test_an_ambiguous_flag_is_refused_as_the_library_refuses_it(self) -> None:
        whole = BACKEND.translate(cell_of(base()), PLACE).argv
        short = (*whole, "--algo.kl.u")
        assert "ambiguous option: --algo.kl.u" in asked_of_library(NEWEST, [short])[0]["error"]
        faults: list[Fault] = []
        read(short, faults)
        assert "--algo.kl.u is ambiguous" in str(faults[0])
        assert "--algo.kl.use_loss" in str(faults[0])

    def test_a_straight_through_gradient_in_the_reward(self) -> None:
        settings = base(kl={"estimator": "k3+"})
        with pytest.raises(UnsupportedSetting, match="k3\\+ is k3 there"):
            BACKEND.translate(cell_of(settings), PLACE)
        argv = (*BACKEND.translate(cell_of(base()), PLACE).argv, "--algo.kl.unbiased_gradient")
        assert "values" in asked_of_library(NEWEST, [argv])[0]
        files = BACKEND.translate(cell_of(base()), PLACE).files
        with pytest.raises(
            SpecError, match=r"unbiased_gradient is ignored without --algo\.kl\.use"
        ):
            BACKEND.parse(argv, files)

    @pytest.mark.parametrize(
        ("version", "flag", "other"),
        [
            (NEWEST, "--train.async_queue_size", "--train.async_enable"),
            (FLAT, "--async_queue_size", "--async_train"),
        ],
    )
    def test_a_queue_without_asynchronous_training(
        self, version: str, flag: str, other: str
    ) -> None:
        """Accepted and ignored: the run is synchronous."""
        plan = BACKEND.translate(cell_of(base(backend={"version": version})), PLACE)
        argv = (*plan.argv, flag, "3")
        assert "values" in asked_of_library(version, [argv])[0]
        with pytest.raises(SpecError, match=f"{flag} is ignored without {other}"):
            BACKEND.parse(argv, plan.files)

    @pytest.mark.parametrize(
        ("flag", "value", "sentence"),
        [
            ("--data.max_samples", "63900", "is no multiple of --rollout.batch_size 256"),
            ("--data.max_samples", None, "number of train steps is unknown"),
            ("--data.max_samples", "102400", "training ends early"),
            ("--train.batch_size", "1000", "makes no train step"),
            ("--train.max_epochs", "2", "more than once"),
            (
                "--algo.kl.init_coef",
                "-0.1",
                r"no kl\.beta for '-0\.1' \(it knows: numbers from 0\)",
            ),
        ],
    )
    def test_steps_and_terms_that_flags_hide(
        self, flag: str, value: str | None, sentence: str
    ) -> None:
        """The parser takes each; the trainer makes other steps, or trains on something else."""
        plan = BACKEND.translate(cell_of(base(num_train_steps=250)), PLACE)
        at = plan.argv.index(flag)
        argv = (*plan.argv[:at], *((flag, value) if value else ()), *plan.argv[at + 2 :])
        assert "values" in asked_of_library(NEWEST, [argv])[0]
        with pytest.raises(SpecError, match=sentence):
            BACKEND.parse(argv, plan.files)

    @pytest.mark.parametrize("version", VERSIONS)
    def test_kl_is_on_unless_turned_off(self, version: str) -> None:
        """No KL flag at all is k1 in the reward at 0.01."""
        none = base(
            kl={"estimator": "none", "placement": None, "beta": 0.0}, backend={"version": version}
        )
        plan = BACKEND.translate(cell_of(none), PLACE)
        args = asked_of_library(version, [plan.argv])[0]["values"]
        assert leaf(args, "algo.kl.init_coef", version) == 0
        at = plan.argv.index("--init_kl_coef" if version == FLAT else "--algo.kl.init_coef")
        bare = plan.argv[:at] + plan.argv[at + 2 :]
        args = asked_of_library(version, [bare])[0]["values"]
        assert leaf(args, "algo.kl.init_coef", version) == 0.01
        kl = BACKEND.parse(bare, plan.files).kl
        assert (kl.estimator, kl.placement, kl.beta) == ("k1", "reward", 0.01)

    def test_a_batch_that_leaves_ranks_with_fewer_samples(self) -> None:
        """1,285 rollouts over 8 GPUs: accepted by the parser, hangs in training."""
        whole = list(BACKEND.translate(cell_of(base()), PLACE).argv)
        whole[whole.index("--rollout.batch_size") + 1] = "257"
        assert "values" in asked_of_library(NEWEST, [whole])[0]
        with pytest.raises(UnsupportedSetting, match=r"batch\.num_prompts=257"):
            BACKEND.translate(cell_of(base(batch={"num_prompts": 257})), PLACE)

    def test_a_comma_in_the_runs_folder(self) -> None:
        place = PLACE._replace(plan_dir=PLACE.plan_dir / "a,b")
        with pytest.raises(UnsupportedSetting, match="splits the paths"):
            BACKEND.translate(cell_of(base()), place)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_what_we_accept_reads_back_as_the_same_cell(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([None, *VERSIONS]))
    cell = data.draw(drawn(version))
    for _, plan in translated((cell,)):
        assert fingerprint(BACKEND.parse(plan.argv, plan.files)) == cell.id
