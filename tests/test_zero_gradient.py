"""A run whose gradient is exactly 0 says so: in words, in the report and in `orch status`."""

import dataclasses
from typing import Any

import pytest

from orchestrator.metrics.zero_gradient import ZeroGradientStretch, zero_gradient_stretch
from orchestrator.records import MetricPoint
from orchestrator.report import zero_gradient_section

GRADIENT, REWARD = "train/grad_norm", "train/reward_mean"


def points(*told: tuple[float | None, float | None]) -> list[MetricPoint]:
    """(gradient, reward) of each train step, from 1; None where the log does not say."""
    return [
        MetricPoint(
            step,
            0.0,
            {
                name: value
                for name, value in ((GRADIENT, gradient), (REWARD, reward))
                if value is not None
            },
        )
        for step, (gradient, reward) in enumerate(told, 1)
    ]


STILL = (0.0, 0.01)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([STILL] * 4, ZeroGradientStretch(1, 4, 4, 0.01)),
        ([(0.5, 0.1), *[STILL] * 3, (0.1, 0.2)], ZeroGradientStretch(2, 4, 3, 0.01)),
        ([*[STILL] * 3, (0.5, 0.1), *[STILL] * 5], ZeroGradientStretch(5, 9, 5, 0.01)),
        ([(0.0, None)] * 3, ZeroGradientStretch(1, 3, 3, None)),
        ([STILL, (None, None), STILL, STILL], ZeroGradientStretch(1, 4, 3, 0.01)),
        ([STILL] * 2, None),
        ([(0.0, 0.1), (0.0, 0.2), (0.0, 0.3)], None),
        ([(1e-9, 0.01)] * 5, None),
        ([(0.0, 1.0)] * 5, None),
        ([(None, 0.01)] * 5, None),
        ([], None),
    ],
)
def test_a_stretch_without_gradient_and_with_one_reward_is_found(
    told: list[tuple[float | None, float | None]], found: ZeroGradientStretch | None
) -> None:
    assert zero_gradient_stretch(points(*told)) == found


def test_the_report_tells_of_it(synthetic: Any) -> None:
    done = synthetic.grid({"none": [0.9, 0.9]})
    assert zero_gradient_section(done.records) is None
    still = dataclasses.replace(done.records[0], metrics=tuple(points(*[STILL] * 4)))
    section = zero_gradient_section([still, *done.records[1:]])
    assert section.id == "unlearnt"
    assert len(section.points) == 1
    assert still.cell.slug in section.points[0]
    many = zero_gradient_section([still] * 25)
    assert many.points[-1] == "And 5 more cells."
