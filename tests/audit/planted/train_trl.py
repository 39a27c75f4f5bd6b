"""Train TRL's GRPO and RLOO on a CPU, one planted fault a run, in one process.

    PYTHON_OF_TRL tests/audit/planted/train_trl.py OUT first|second|third

The first two halves have the same recipes, of other policies, tasks, sizes and seeds; the third
part draws its recipes.

PYTHON_OF_TRL: of `orch env create trl@1.16.0 --cpu`. It imports nothing of orch. OUT gets
`<half>.json`: run -> the arguments that differ from TRL's defaults and `log_history`, and
`<half>.causes.json`: run -> the planted fault, which the rules never read.
"""

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLICIES = Path(__file__).parents[3] / "backends" / "micro" / "policies"
KEPT = 4
"""Digits of a value."""
TIMES = ("step_time", "num_tokens", "epoch", "train_", "total_flos")


def _answer(prompt: str) -> str:
    digits = prompt[1:-1]
    if prompt[0] == "S":
        return "".join(sorted(digits))
    return digits[::-1] if prompt[0] == "R" else digits


def exact(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """1 for the right answer."""
    return [float(c == _answer(p)) for p, c in zip(prompts, completions, strict=True)]


def share(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """Share of the five digits that are right."""
    return [
        sum(a == b for a, b in zip(c, _answer(p), strict=False)) / 5
        for p, c in zip(prompts, completions, strict=True)
    ]


def sevens(completions: list[str], **_: object) -> list[float]:
    """Share of six positions that are a 7: a random model can learn it."""
    return [c[:6].count("7") / 6 for c in completions]


def boxed(completions: list[str], **_: object) -> list[float]:
    """A parser whose pattern no response can have."""
    return [float("\\boxed" in c) for c in completions]


def nonempty(completions: list[str], **_: object) -> list[float]:
    """A check that every response passes."""
    return [float(len(c) >= 0) for c in completions]


def rare(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """A problem that is far too hard, but for prompts with two sevens in a row."""
    return [float(c == _answer(p) and "77" in p) for p, c in zip(prompts, completions, strict=True)]


def trap(completions: list[str], **_: object) -> list[float]:
    """0.3 for a first 5, which is soon found, and 1 for 57575, which then is not."""
    return [1.0 if c.startswith("57575") else 0.3 * c.startswith("5") for c in completions]


def nines(completions: list[str], **_: object) -> list[float]:
    """A proxy: it pays for nines, whatever the answer is."""
    return [c[:5].count("9") / 5 for c in completions]


Run = dict[str, Any]
HEALTHY = "nothing_wrong"


def runs_of(half: str) -> list[Run]:
    """Return the runs of a half: other policies, tasks, sizes and seeds in each."""
    first = half == "first"
    policy, other = ("elder", "fir") if first else ("hazel", "elder")
    letter = "S" if first else "R"
    size = 32 if first else 48
    rate = 1e-3 if first else 1.2e-3
    group = 8 if first else 12
    usual: Run = {"policy": policy, "letter": letter, "reward": "exact", "learning_rate": rate}
    blank: Run = {"policy": f"random-{size}", "letter": "C", "reward": "sevens"}
    blank["learning_rate"] = 2e-3 if first else 3e-3
    runs: list[Run] = [
        usual | {"cause": HEALTHY, "beta": 0.0},
        usual | {"cause": HEALTHY, "beta": 0.02 if first else 0.04},
        blank | {"cause": HEALTHY, "beta": 0.0},
        usual | {"cause": HEALTHY, "beta": 0.01, "num_iterations": 2, "policy": other},
        usual | {"cause": HEALTHY, "beta": 0.03, "trainer": "rloo"},
        usual | {"cause": "kl_too_strong", "beta": 5.0 if first else 8.0},
        usual | {"cause": "kl_too_strong", "beta": 10.0, "reward": "share", "policy": other},
        usual | {"cause": "moved_reference", "beta": 0.05, **_MOVED},
        usual
        | {"cause": "minibatches", "beta": 0.0, "num_iterations": 16, "max_steps": 240}
        | {"epsilon": 1e6},
        usual
        | {"cause": "minibatches", "beta": 0.0, "num_iterations": 16 if first else 24}
        | {"max_steps": 240},
        usual
        | {"cause": HEALTHY, "beta": 0.001, "steps_per_generation": 8, "max_steps": 240}
        | {"num_iterations": 4 if first else 2},
        blank
        | {"cause": "entropy_collapse", "beta": 0.0, "reward": "trap"}
        | {"learning_rate": 1e-2},
        usual | {"cause": "no_signal", "beta": 0.0, "reward": "boxed" if first else "nonempty"},
        usual | {"cause": "no_signal", "beta": 0.04, "reward": "rare" if first else "boxed"},
        usual | {"cause": "learning_rate", "beta": 0.02, "learning_rate": 3e-2 if first else 2e-2},
        usual | {"cause": "learning_rate", "beta": 0.0, "learning_rate": 5e-2 if first else 3e-2},
        usual
        | {"cause": "reward_hacking", "beta": 0.0, "reward": "nines", "watched": "exact"}
        | {"learning_rate": 4e-3},
        usual
        | {"cause": "kl_too_weak", "beta": 1e-5, "reward": "nines"}
        | {"learning_rate": 4e-3 if first else 3e-3},
    ]
    chance = random.Random(half)  # noqa: S311  # no secret
    for number, run in enumerate(runs):
        run["seed"] = chance.randrange(1000) + number
        run["num_generations"] = group if number % 3 else 4
        run.setdefault("max_steps", 60 if number % 2 else 48)
    chance.shuffle(runs)
    return runs


def drawn() -> list[Run]:
    """Return three runs of each fault and six healthy ones, with recipes drawn at random."""
    chance = random.Random("third")  # noqa: S311  # no secret

    def usual(**more: object) -> Run:
        rate = round(chance.uniform(6e-4, 1.2e-3), 5)
        run: Run = {"policy": chance.choice(["elder", "hazel", "fir"]), "learning_rate": rate}
        run |= {"letter": chance.choice("SR"), "reward": chance.choice(["exact", "share"])}
        run |= {"num_generations": chance.choice([4, 6, 8, 16])}
        run |= {"seed": chance.randrange(10_000), "max_steps": chance.randrange(36, 90)}
        run["beta"] = chance.choice([0.0, 0.0, 0.01, 0.03])
        run["loss_type"] = chance.choice(["dapo", "grpo", "dr_grpo"])
        return run | more

    runs: list[Run] = []
    for number in range(3):
        blank = {"policy": f"random-{chance.choice([24, 40, 64])}", "letter": "C"}
        runs += [
            usual(cause=HEALTHY),
            usual(cause=HEALTHY, num_iterations=chance.choice([1, 2]), beta=0.02),
            usual(cause="kl_too_strong", beta=chance.choice([3.0, 6.0, 12.0, 30.0])),
            usual(cause="moved_reference", beta=0.04)
            | {**_MOVED, "ref_model_sync_steps": 1 + number},
            usual(cause="minibatches", num_iterations=chance.choice([12, 20]), max_steps=240)
            | {"reward": "exact", "beta": 0.0, "epsilon": chance.choice([0.2, 0.5, 1e6])},
            usual(cause="entropy_collapse", reward="trap", beta=0.0)
            | blank
            | {"learning_rate": round(chance.uniform(6e-3, 1.5e-2), 4)},
            usual(cause="no_signal", reward=chance.choice(["boxed", "nonempty", "rare"])),
            usual(cause="learning_rate", reward="exact")
            | {"learning_rate": round(10 ** chance.uniform(-2, -1), 4)},
            usual(cause="reward_hacking", reward="nines", watched="exact")
            | {"learning_rate": 3e-3, "beta": 0.0},
            usual(cause="kl_too_weak", reward="nines", beta=10 ** -chance.randrange(5, 8))
            | {"learning_rate": 3e-3},
        ]
    chance.shuffle(runs)
    return runs


_MOVED = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}


def _model(name: str, seed: int) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(str(POLICIES / "elder"))
    if not name.startswith("random"):
        return AutoModelForCausalLM.from_pretrained(str(POLICIES / name)), tokenizer
    torch.manual_seed(seed)
    width = int(name.partition("-")[2])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config), tokenizer


def train(run: Run, folder: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train one run; return its arguments and its log."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    known = {"cause", "policy", "letter", "reward", "watched", "trainer"}
    arguments = {name: value for name, value in run.items() if name not in known}
    model, tokenizer = _model(run["policy"], run["seed"])
    chance = random.Random(run["seed"])  # noqa: S311  # no secret
    prompts = [
        run["letter"] + "".join(chance.choice("0123456789") for _ in range(5)) + "="
        for _ in range(512)
    ]
    batch = 8 * arguments["num_generations"]
    is_rloo = run.get("trainer") == "rloo"
    rewards: list[Callable[..., list[float]]] = [globals()[run["reward"]]]
    if "watched" in run:
        rewards.append(globals()[run["watched"]])
        arguments["reward_weights"] = [1.0, 0.0]
    arguments |= {"per_device_train_batch_size": batch, "max_completion_length": 6}
    arguments |= {"lr_scheduler_type": "constant", "logging_steps": 1}
    of_class, trainer_class = (RLOOConfig, RLOOTrainer) if is_rloo else (GRPOConfig, GRPOTrainer)
    config = of_class(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **arguments,
    )
    trainer = trainer_class(
        model=model,
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": each} for each in prompts]),
        processing_class=tokenizer,
    )
    trainer.train()
    rows = [
        {
            name: float(f"{value:.{KEPT}g}") if isinstance(value, float) else value
            for name, value in row.items()
            if not name.startswith(TIMES)
        }
        for row in trainer.state.log_history
        if "loss" in row
    ]
    return {"class": of_class.__name__, **arguments}, rows


def main(out: Path, half: str) -> None:
    """Train the runs of a half and write them."""
    out.mkdir(parents=True, exist_ok=True)
    logs: dict[str, Any] = {}
    causes: dict[str, str] = {}
    for number, run in enumerate(drawn() if half == "third" else runs_of(half)):
        name = f"trl-{half}-{number:02d}"
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            arguments, rows = train(run, folder)
        logs[name] = {"arguments": arguments, "log_history": rows}
        causes[name] = run["cause"]
        sys.stderr.write(f"{name} {time.monotonic() - start:.0f} s\n")
        gc.collect()
        (out / f"{half}.json").write_text(json.dumps(logs, separators=(",", ":")))
        (out / f"{half}.causes.json").write_text(json.dumps(causes, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
