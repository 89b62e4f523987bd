"""Statistics on streams whose answers are known beforehand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.domain.load import Record, latency, percentile, summarise


def steady(start: float, end: float, step: float, latency_ms: float, users: int = 1) -> list[Record]:
    """A closed loop: each user sends every ``step`` seconds."""
    count = round((end - start) / step)
    return [Record(start + i * step, latency_ms, 200) for _ in range(users) for i in range(count)]


def test_percentiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 1001)]
    random.Random(1).shuffle(values)
    found = latency(values)
    assert found is not None
    assert dict(found.percentiles) == {"p50": 500, "p75": 750, "p90": 900, "p95": 950, "p99": 990, "p99.9": 999}
    assert (found.min, found.max, found.mean, found.count) == (1, 1000, 500.5, 1000)


def test_the_histogram_that_torchserves_own_benchmark_gets_wrong() -> None:
    stream = [10.0] * 900 + [20.0] * 80 + [30.0] * 10 + [100.0] * 9 + [2000.0]
    found = latency(stream)
    assert found is not None
    assert (found.value("p50"), found.value("p90"), found.value("p99")) == (10, 10, 30)
    assert (found.value("p99.9"), found.value("max")) == (100, 2000)


@given(st.lists(st.floats(0.001, 1e6), min_size=1), st.floats(0.1, 100))
def test_at_least_p_percent_are_not_above(values: list[float], p: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, p)
    assert found in values
    assert sum(value <= found for value in values) >= p / 100 * len(values) - 1e-6
    assert sum(value < found for value in values) < p / 100 * len(values) + 1e-6


def test_nothing_answered_has_no_latency() -> None:
    stats = summarise([Record(1.0, 5.0, 503, "full"), Record(2.0, 5.0, 0, "refused")], 0, 10)
    assert stats.latency is None
    assert (stats.sent, stats.answered, stats.throughput, stats.errors_percent) == (2, 0, 0, 100)
    assert summarise([], 0, 10).errors_percent is None, "nothing sent is neither success nor failure"


def test_warm_up_is_left_out_by_start() -> None:
    slow, fast = steady(0, 5, 0.5, 400.0), steady(5, 15, 0.5, 10.0)
    stats = summarise(slow + fast, warmup_s=5, end_s=15)
    assert stats.latency is not None
    assert (stats.sent, stats.latency.count, stats.latency.max) == (20, 20, 10)
    assert stats.throughput == pytest.approx(2.0)
    assert stats.window_s == 10
    assert len(stats.series) == 15, "the plots show the warm-up too"


def test_errors_are_apart_from_latencies() -> None:
    records = [*steady(0, 10, 1, 10.0), Record(2, 9000, 503, "queue full"), Record(6, 1.0, 503, "queue full")]
    records.append(Record(4, 60_000, 0, "no answer when the test ended"))
    stats = summarise(records, 0, 10)
    assert stats.latency is not None
    assert stats.latency.max == 10
    assert stats.errors_percent == pytest.approx(100 * 3 / 13)
    full, cut = stats.failures
    assert (full.status, full.message, full.count, full.first_s, full.last_s) == (
        503, "queue full", 2, pytest.approx(6.001), pytest.approx(11.0),
    )  # fmt: skip
    assert (cut.status, cut.count) == (0, 1)


def test_a_stall_shows_for_as_long_as_it_lasts() -> None:
    """Four users at 1000 requests/s together; at 5.3 s everything stops for two seconds."""
    before = steady(0, 5.3, 0.004, 3.0, users=4)
    stalled = [Record(5.3, 2000.0, 200)] * 4
    after = steady(7.3, 10, 0.004, 3.0, users=4)
    stats = summarise(before + stalled + after, 0, 10)
    assert stats.latency is not None
    assert stats.latency.value("p99") == 3.0, "four of thousands: the overall p99 does not know"
    assert stats.series[6].p99 == 2000, "the second in which nothing else was in flight does"
    assert stats.series[6].p50 == 2000
    assert stats.series[6].throughput == 0
    assert stats.series[3].p99 == 3


def test_an_unanswered_request_is_in_flight_too() -> None:
    stats = summarise([Record(1.0, 5000.0, 0, "timed out")], 0, 8)
    assert [bucket.p50 for bucket in stats.series] == [None, 5000, 5000, 5000, 5000, 5000, 5000, None]


def test_throughput_is_what_was_completed_in_the_window() -> None:
    records = [Record(4.5, 1000.0, 200), Record(9.5, 1000.0, 200), Record(6.0, 10.0, 200)]
    stats = summarise(records, warmup_s=5, end_s=10)
    assert stats.throughput == pytest.approx(2 / 5), "ended inside: the first and the last; the second ended after"
    assert stats.sent == 2


def test_long_tests_get_wider_buckets() -> None:
    stats = summarise(steady(0, 3600, 1, 5.0), 0, 3600)
    assert stats.bucket_s == 6
    assert len(stats.series) == 600
    assert stats.series[10].throughput == pytest.approx(1.0)
