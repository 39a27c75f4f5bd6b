"""Runs inside an OpenRLHF environment with TensorBoard: real logs of an imagined run.

argv: a directory for event files, the run's name, and JSON: a list of [step, {name: value}]. The
library's own TensorboardLogger writes the events, and its own logger the lines on stdout. Of torch
only SummaryWriter is needed; this one writes what torch's does, with TensorBoard's own classes.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class SummaryWriter:
    def __init__(self, log_dir: str):
        self.writer = EventFileWriter(log_dir)
        self.time = 1_700_000_000.0

    def _add(self, value: object, step: int) -> None:
        self.time += 0.25
        event = Event(wall_time=self.time, step=step, summary=Summary(value=[value]))
        self.writer.add_event(event)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self._add(Summary.Value(tag=tag, simple_value=value), step)

    def add_text(self, tag: str, text: str, step: int) -> None:
        self._add(Summary.Value(tag=tag, metadata={"summary_description": text}), step)

    def close(self) -> None:
        self.writer.close()


def main() -> None:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    sys.modules |= {
        "torch": types.ModuleType("torch"),
        "torch.utils": types.ModuleType("torch.utils"),
        "torch.utils.tensorboard": module,
    }
    package = importlib.util.find_spec("openrlhf")
    path = Path(package.submodule_search_locations[0]) / "utils" / "logging_utils.py"
    spec = importlib.util.spec_from_file_location("openrlhf_logging", path)
    logging_utils = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(logging_utils)
    directory, name, steps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    args = SimpleNamespace(
        use_tensorboard=directory,
        wandb_run_name=name,
        logger=SimpleNamespace(tensorboard_dir=directory, wandb=SimpleNamespace(run_name=name)),
    )
    board = logging_utils.TensorboardLogger(args)
    logger = logging_utils.init_logger("openrlhf.trainer")
    for step, status, *validated in steps:
        logger.info(f"✨ Global step {step}: {status}")
        last = status.popitem()
        board.log_train(step, {**status, "generated_samples": ["text", 1.0], last[0]: last[1]})
        for logs in validated:  # as PPOTrainer.evaluate does
            board.log_eval(step, logs)
            logger.info(
                f"✨ Evaluation completed in 0:00:12, global_step {step}, eval_metrics: {logs}"
            )
    board.close()


main()
