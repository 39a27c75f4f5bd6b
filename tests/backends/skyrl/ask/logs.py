"""Runs inside a SkyRL environment with TensorBoard: SkyRL's own trackers log an imagined run.

python logs.py FOLDER. In: JSON [[step, {key: value}], ...]. Of torch only SummaryWriter is needed;
this one writes what torch's does, with TensorBoard's own classes. The console's report goes to
standard output, as SkyRL prints it.
"""

import json
import os
import sys
import types
from pathlib import Path

import loguru
import numpy as np  # noqa: F401  (see above)
import omegaconf  # noqa: F401  (see above)

sys.path.insert(0, str(Path(__file__).parents[4] / "lab" / "skyrl"))
from absent import AbsentModules
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class SummaryWriter:
    def __init__(self, log_dir):
        self.writer, self.time = EventFileWriter(log_dir), 1_700_000_000.0

    def add_scalar(self, tag, value, step):
        self.time += 0.25
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        self.writer.add_event(Event(wall_time=self.time, step=step, summary=summary))

    def close(self):
        self.writer.close()


def main():
    for name in ("torch", "torch.utils", "torch.utils.tensorboard"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["torch.utils.tensorboard"].SummaryWriter = SummaryWriter
    loguru.logger.remove()
    loguru.logger.add(sys.stdout, colorize=True)
    sys.meta_path.append(AbsentModules())
    del sys.modules["torch"], sys.modules["torch.utils"]
    os.environ["TENSORBOARD_DIR"] = sys.argv[1]
    from skyrl.train.utils.tracking import Tracking

    trackers = [Tracking("p", "r", name) for name in ("tensorboard", "console")]
    for step, values in json.load(sys.stdin):
        for tracker in trackers:
            tracker.log(values, step=step, commit=True)
    for tracker in trackers:
        tracker.finish()


main()
