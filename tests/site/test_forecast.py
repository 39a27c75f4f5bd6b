"""What `plan` and `doctor` foresee of a site: images, and limits that a cell cannot meet."""

import pytest

from orchestrator.records import Cell
from orchestrator.site.forecast import time_limit_warnings
from orchestrator.spec.site_options import SlurmOptions, faults
from tests.launch.kit import make_cell


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"image": "/i/v.sif; rm -rf /"}, "environments.verl.image: a file or an address: letters"),
        ({"image": "-v"}, "environments.verl.image: a file or an address: letters"),
        ({"image": "/i", "binds": ["data"]}, "environments.verl.binds.0: /host, /host:/inside or"),
        ({"image": "/i", "binds": ["/a:/b:ro,/c"]}, "environments.verl.binds.0: /host, /host:"),
        ({"image": "/i", "runtime": "podman"}, "environments.verl.runtime"),
        ({"venv": "/v", "runtime": "pyxis"}, "runtime go with an image, and none is given"),
        ({"image": "/i", "venv": "/v"}, "an environment is one of venv, python, image"),
    ],
)
def test_what_an_image_may_say_is_an_allow_list(entry: dict[str, object], words: str) -> None:
    (sentence,) = [text for text, _ in faults({"environments": {"verl": entry}})]
    assert words in sentence


def lasting(hours: float, every: int | None, steps: int = 100) -> Cell:
    """A cell that takes so long, and writes a checkpoint every so many of its steps."""
    cadence = {"checkpoint_every_steps": every}
    resources = {"gpus_per_node": 4, "hours": hours}
    return make_cell(0, "", steps, resources=resources, cadence=cadence)


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (lasting(20, 10), []),  # one job is enough
        (lasting(20, None), []),
        (lasting(60, 10), []),  # three jobs of 24 h, a checkpoint every 6 h
        (lasting(60, 39), []),  # the first after 23.4 h
        (lasting(60, 40), ["first checkpoint after about 24 h"]),  # the job is told a second before
        (lasting(60, 41), ["first checkpoint after about 24.6 h"]),
        (lasting(60, 90), ["write their first checkpoint after about 54 h"]),
        (lasting(60, None), ["first checkpoint after about 60 h"]),
        (lasting(600, 2), ["more than site.options.max_requeues allows"]),
    ],
)
def test_the_first_checkpoint_must_come_before_the_time_limit(cell: Cell, words: list[str]) -> None:
    options = SlurmOptions(time_limit_hours=24, signal_seconds=1, max_requeues=4)
    told = list(time_limit_warnings([cell], options))
    assert len(told) == len(words), told
    assert all(word in sentence for word, sentence in zip(words, told, strict=True))
