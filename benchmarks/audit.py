"""CPU seconds of `orch audit` over 200 scripts, the start of Python included.

    python benchmarks/audit.py [FOLDER]

Without a folder of real scripts (ORCH_WILD_SCRIPTS serves as well), it writes 200 of its own: 90
lines each, with arrays, defaults, functions, branches and a long command, for three libraries.
"""

import os
import resource
import subprocess
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

BAR = 2.0
COUNT = 200
LINES = "".join(f"    data.key_{i}=${{KEY_{i}:-{i}}} \\\n" for i in range(40))
HEAD = "#!/bin/bash\nset -x\nN=${N:-8}\nif [ $N -gt 4 ]; then B=8; else B=4; fi\n" + "".join(
    f'OPTION_{i}="${{OPTION_{i}:-value/{i}}}"\n' for i in range(30)
)
SCRIPTS = (
    (
        "KL=(actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_type=k3)\n"
        f'python3 -m verl.trainer.main_ppo \\\n{LINES}    "${{KL[@]}}" "$@"\n'
    ),
    "ray job submit --address=http://localhost:8265 -- python3 -m openrlhf.cli.train_ppo_ray \\\n"
    + "".join(f"   --flag_{i} $OPTION_{i % 30} \\\n" for i in range(40))
    + "   --init_kl_coef 0.01 --kl_estimator k2 --use_kl_loss\n",
    (
        "uv run --isolated -m skyrl.train.entrypoints.main_base \\\n"
        f"{LINES}    trainer.algorithm.use_kl_loss=true $@\n"
    ),
)


def main() -> None:
    """Run the command on COUNT files and print what it took."""
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ORCH_WILD_SCRIPTS")
    with tempfile.TemporaryDirectory() as folder:
        if given:
            files = [p for p in sorted(Path(given).rglob("*.sh")) if p.is_file()][:COUNT]
        else:
            files = []
            for i, text in enumerate(islice(cycle(SCRIPTS), COUNT)):
                files.append(Path(folder) / f"launch_{i}.sh")
                files[-1].write_text(HEAD + text)
        argv = [sys.executable, "-m", "orchestrator", "audit", "--json", *map(str, files)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(
        f"{len(files)} scripts: {seconds:.2f} CPU s (bar {BAR:g} s), "
        f"{used.ru_maxrss / 1024:.0f} MiB, exit {done.returncode}"
    )
    assert done.stdout.startswith("{"), done.stderr
    assert len(files) < COUNT or seconds <= BAR


if __name__ == "__main__":
    main()
