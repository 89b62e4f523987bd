from __future__ import annotations

import pytest

from servekit.domain.slo import judge, parse_slo
from servekit.errors import ConfigError

MEASURED: dict[str, float | None] = {
    "p50": 10.0, "p75": 12.0, "p90": 15.0, "p95": 20.0, "p99": 50.0, "p99.9": 80.0,
    "max": 90.0, "mean": 11.0, "errors": 0.1, "throughput": 100.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("p99<50ms", False),
        ("p99<=50ms", True),
        ("p99<0.051s", True),
        ("p50<10001us", True),
        ("p99.9 < 80.1 ms", True),
        ("mean<11ms", False),
        ("max<90.5ms", True),
        ("errors<0.1%", False),
        ("errors<=0.1%", True),
        ("throughput>99/s", True),
        ("throughput>100", False),
        ("throughput>=100rps", True),
    ],
)
def test_verdicts(text: str, met: bool) -> None:
    (verdict,) = judge(parse_slo(text), MEASURED)
    assert verdict.met is met


def test_every_clause_is_judged() -> None:
    verdicts = judge(parse_slo("p99<60ms, errors<0.01%,throughput>50/s"), MEASURED)
    assert [(v.clause.text, v.met, v.measured) for v in verdicts] == [
        ("p99<60ms", True, 50.0),
        ("errors<0.01%", False, 0.1),
        ("throughput>50/s", True, 100.0),
    ]


def test_no_answer_meets_no_latency_objective() -> None:
    (verdict,) = judge(parse_slo("p99<60ms"), {**MEASURED, "p99": None})
    assert not verdict.met
    assert verdict.measured is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("p99", "not a condition"),
        ("p98<5ms", "not measured"),
        ("p99<5", "needs a unit"),
        ("p99<5%", "needs a unit"),
        ("errors<1ms", "needs a unit"),
        ("throughput<100", "wrong direction"),
        ("p99>5ms", "wrong direction"),
        ("p99==5ms", "not a condition"),
    ],
)
def test_what_cannot_be_read_is_an_error(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        parse_slo(text)
    assert "p99.9" in caught.value.hint


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigError, match="3 problems"):
        parse_slo("p98<5ms,errors<1ms,nonsense")
