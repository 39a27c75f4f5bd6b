"""Leave the runs of a spec, as a cluster would, with a planted truth.

    python -m tests.replay experiments/comedy_full.yaml --world paper --seed 0 --out /tmp/replay
    python -m tests.replay experiments/comedy_full.yaml --out /tmp/replay --cut 7

It prints the commands that read them. --cut leaves them half finished, another way for each number.
"""

import argparse
import shlex
from pathlib import Path

from tests.replay.build import build
from tests.replay.cut import cut
from tests.replay.truth import WORLDS


def main() -> None:
    own = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    own.add_argument("spec")
    own.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    own.add_argument("--world", choices=WORLDS, default="paper")
    own.add_argument("--seed", type=int, default=0, help="another draw of the noise")
    own.add_argument("--out", type=Path, required=True, help="the runs folder")
    own.add_argument("--cut", type=int, help="half finished, at random")
    asked = own.parse_args()
    overrides = asked.overrides
    replay = build(
        asked.spec, asked.world, asked.out.absolute(), seed=asked.seed, overrides=overrides
    )
    if asked.cut is not None:
        print("\n".join(cut(replay.experiment.folder, asked.cut)))
    fallen = sum(each.falls_at is not None for each in replay.truths.values())
    print(f"{len(replay.truths)} runs, of which {fallen} collapse")
    for command in ("compare", "report"):
        print(shlex.join(["orch", command, asked.spec, *replay.overrides]))


if __name__ == "__main__":
    main()
