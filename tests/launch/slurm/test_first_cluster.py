"""docs/first_cluster.md: its two files and its commands, against SLURM's own daemons.

Only what SMALL names is changed: a stand-in trains in the place of verl, on prompts of this test,
and its policy is scored on tasks that it understands. The stand-in runs out of memory until its
micro batch is 1, so that the page's last commands have something to mend.
"""

import json
import re
from pathlib import Path

import pytest
from command_line import ROOT, orch

from tests.cluster import Cluster
from tests.launch.kit import program
from tests.launch.slurm import standin_verl

PAGE = ROOT / "docs" / "first_cluster.md"
SMALL = {
    "/shared/environments": "{home}/environments",
    "/shared/huggingface": "{home}/hf",
    "gres: gpu:a100:4\n": "gres: gpu:a100:4\n  memory_gib: 4\n",
    "seeds: [0, 1, 2]": "seeds: [0]",
    "path: Qwen/Qwen2.5-7B}": "path: Qwen/Qwen2.5-0.5B}}",  # its checkpoints fit a small disk
    "data: math\n": "data: {{name: sums, path: sums.jsonl, num_prompts: 16}}\n",
    "base: {kl.beta: 0.05, ": "base: {{kl.beta: 0.05, num_train_steps: 30, batch.num_prompts: 16, "
    "rollout.max_response_tokens: 64, ",
    "tasks: [{name: math500, domain: in}]": "tasks: [{{name: micro_sort, domain: in, repeats: 2, "
    "max_items: 32, chat_template: none}}]\n  sampling: {{max_response_tokens: 7}}\n"
    "  engine: {{name: hf}}",
}
STARVED = """\
case "$*" in
*main_ppo*ppo_micro_batch_size_per_gpu=1" "*|*ppo_micro_batch_size_per_gpu=1" "*main_ppo*) ;;
*main_ppo*) echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB' >&2; exit 1;;
esac
exec "$(dirname "$0")/python-of-verl" "$@"
"""


def written(home: Path) -> list[list[str]]:
    """Write the files of the page. Return its commands, without the one that installs verl."""
    page = PAGE.read_text(encoding="utf-8")
    site, spec = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for old, new in SMALL.items():
        assert old in site + spec, f"the page has no {old!r} any more"
        site, spec = (text.replace(old, new.format(home=home)) for text in (site, spec))
    (home / "site").mkdir()
    (home / "site" / "mine.yaml").write_text(site)
    (home / "qwen7b.yaml").write_text(spec)
    table = re.findall(r"^\| (\d) \| `orch (.*?)` \|", page, re.MULTILINE)
    assert [number for number, _ in table] == [str(n) for n in range(1, 9)]
    block = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[-1]
    mending = [line.removeprefix("orch ") for line in block.splitlines()]
    first, *commands = [command for _, command in table]
    assert first.startswith("env create verl@0.9.1")
    return [command.split() for command in [*commands[:-2], *mending, *commands[-2:]]]


@pytest.mark.slow
@pytest.mark.long(120)
def test_the_eight_commands(cluster: Cluster, tmp_path: Path, house: Path) -> None:
    del cluster  # its environment is this process's
    place = standin_verl.environment(tmp_path / "environments" / "verl-0.9.1")
    (place / "bin" / "python").rename(place / "bin" / "python-of-verl")
    program(place / "bin" / "python", STARVED, "/bin/sh")
    problems = [{"question": f"What is 1 + {n}?", "answer": str(1 + n)} for n in range(16)]
    lines = "".join(json.dumps(each) + "\n" for each in problems)
    (tmp_path / "sums.jsonl").write_text(lines)
    (tmp_path / "validation.jsonl").write_text(lines)
    said: dict[str, str] = {}
    pilot = "run qwen7b.yaml --pilot --wait"
    assert f"`orch {pilot}`" in PAGE.read_text(encoding="utf-8")
    for words in written(tmp_path):
        done = orch(tmp_path, *words, PYTHONPATH=str(house))
        print("$ orch", *words, done.stdout, done.stderr, sep="\n")
        assert "Traceback" not in done.stderr, done.stderr
        said[" ".join(words[:3])] = done.stdout + done.stderr
        if words[0] == "plan":
            assert "estimated]" in done.stdout
            one = orch(tmp_path, *pilot.split(), "system.micro_batch=1", PYTHONPATH=str(house))
            assert one.returncode == 0, one.stdout + one.stderr
            assert re.search(r"verl@0.9.1 qwen2.5-7b on 1 x 4 GPUs: .* a train step", one.stdout)
            assert "scored" in one.stdout.rpartition(", ")[2]
            again = orch(tmp_path, *words, PYTHONPATH=str(house)).stdout
            assert "2 new" in again
            assert "GPU-hours [2 measured]" in again
        if words[0] == "run" and "--wait" not in words:
            ids = sorted(path.name for path in (tmp_path / "runs/qwen7b/cells").iterdir())
            waited = orch(tmp_path, *words, "--wait", PYTHONPATH=str(house))
            assert waited.returncode != 0, "the stand-in has no memory"
    assert "memory of a GPU" in said["plan qwen7b.yaml"]
    assert "disk for checkpoints" in said["plan qwen7b.yaml"]
    failed = said["logs --failed qwen7b.yaml"]
    assert "out_of_memory" in failed
    assert "system.micro_batch=1" in failed
    assert "2 of 2 cells will run again" in said["retry qwen7b.yaml -w"]
    (status,) = json.loads(
        orch(tmp_path, "status", "qwen7b.yaml", "--json", PYTHONPATH=str(house)).stdout
    )
    assert status["states"] == {"succeeded": 2}
    assert sorted(path.name for path in (tmp_path / "runs/qwen7b/cells").iterdir()) == ids
    assert "k1.reward" in said["compare qwen7b.yaml"]
    for cell in (tmp_path / "runs/qwen7b/cells").iterdir():
        (record,) = cell.glob("exports/*/export.json")
        assert json.loads(record.read_text())["environment"]["venv"] == str(place)
        assert not list(cell.glob("checkpoints/**/*.safetensors")), "verl left shards alone"
