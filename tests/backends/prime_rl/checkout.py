"""Runs Prime-RL's own configuration classes, in a process and an environment of their own.

stdin: JSON {"source": folder with prime_rl/, "files": [{"kind": "rl"|"inference", "path": ...}]};
stdout: JSON, one {"ok", "error", "resolved"} a file.
torch, wandb and the rest of what its configuration imports without use are replaced by stand-ins.
"""

import json
import sys
import tomllib
import types
from pathlib import Path
from unittest.mock import MagicMock


class StandIn(types.ModuleType):
    def __getattr__(self, name):
        return MagicMock()


for name in (
    "torch",
    "torch.distributed",
    "wandb",
    "loguru",
    "loguru._logger",
    "torch.nn",
    "torch.distributed.tensor",
):
    sys.modules.setdefault(name, StandIn(name))


def validated(kind, path):
    from prime_rl.configs.inference import InferenceConfig
    from prime_rl.configs.orchestrator import OrchestratorConfig
    from prime_rl.configs.rl import RLConfig
    from prime_rl.configs.trainer import TrainerConfig

    config = {"rl": RLConfig, "inference": InferenceConfig}[kind]
    tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    try:
        made = config.model_validate(tree)
        resolved = made.model_dump(mode="json", exclude_none=True)
        if kind == "rl":  # as its own processes read what `rl` writes for them
            read = {"trainer": TrainerConfig, "orchestrator": OrchestratorConfig}
            read |= {"inference": InferenceConfig, "teacher_inference": InferenceConfig}
            for name in read.keys() & resolved.keys():
                own = read[name].model_validate(resolved[name])
                resolved[name] = own.model_dump(mode="json", exclude_none=True)
    except Exception as error:
        return {"ok": False, "error": str(error), "resolved": None}
    return {"ok": True, "error": "", "resolved": resolved}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    sys.path.insert(0, asked["source"])
    json.dump([validated(f["kind"], f["path"]) for f in asked["files"]], sys.stdout, default=str)
