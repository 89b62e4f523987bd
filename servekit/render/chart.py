"""Lines over time as inline SVG: no library, no request, readable on paper.

Colours are Okabe and Ito's (safe for colour-blind readers) and live in the report's style sheet as
``--c0``...; each line also has its own dash pattern, and each point its numbers as a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 920, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 12, 28


@dataclass(frozen=True)
class Line:
    """``points`` are (seconds, value); a None value is a gap, never a zero."""

    label: str
    points: tuple[tuple[float, float | None], ...]
    style: int = 0


@dataclass(frozen=True)
class Chart:
    title: str
    unit: str
    lines: tuple[Line, ...]
    end_s: float
    warmup_s: float
    note: str = ""
    steps: bool = False
    """points are the beginnings of buckets, drawn as steps"""


def svg(chart: Chart) -> str:
    """The chart as one ``<svg>`` element."""
    scale = _Scale.of(chart)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}" '
        f'data-left="{_LEFT}" data-right="{WIDTH - _RIGHT}" data-end="{chart.end_s:g}">',
        f"<title>{escape(chart.title)}, {escape(chart.unit)}, over seconds</title>",
    ]
    if chart.warmup_s > 0:
        width = scale.x(min(chart.warmup_s, chart.end_s)) - _LEFT
        parts.append(
            f'<rect class="warmup" x="{_LEFT}" y="{_TOP}" width="{width:.1f}" height="{HEIGHT - _TOP - _BOTTOM}"/>'
        )
        if width > 50:
            parts.append(f'<text class="note" x="{_LEFT + 6}" y="{_TOP + 14}">warm-up</text>')
    for value in scale.ticks:
        y = scale.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for second in _nice(0, chart.end_s, 8):
        x = scale.x(second)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{number(second)} s</text>')
    parts += [_line(line, scale, chart) for line in chart.lines]
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" visibility="hidden"/>')
    parts.append("</svg>")
    return "".join(parts)


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    end_s: float
    log: bool
    ticks: tuple[float, ...]

    @classmethod
    def of(cls, chart: Chart) -> _Scale:
        values = [value for line in chart.lines for _, value in line.points if value is not None]
        positive = sorted(value for value in values if value > 0)
        # A stall of seconds among milliseconds: on a linear axis one of them would be invisible.
        median = positive[len(positive) // 2] if positive else 1.0
        if chart.unit == "ms" and positive and positive[-1] > 20 * median:
            low = 10 ** math.floor(math.log10(positive[0]))
            high = 10 ** math.ceil(math.log10(positive[-1] * 1.001))
            powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
            return cls(low, high, chart.end_s, True, tuple(10.0**power for power in powers))
        top = max(values, default=1.0) or 1.0
        ticks = tuple(_nice(0, top, 5))
        step = ticks[1] - ticks[0] if len(ticks) > 1 else top
        high = step * math.ceil(top / step - 1e-9)
        return cls(0.0, high, chart.end_s, False, (*ticks, high) if high > ticks[-1] + step / 2 else ticks)

    def x(self, second: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * second / max(self.end_s, 1e-9)

    def y(self, value: float) -> float:
        if self.log:
            part = math.log10(max(value, self.low) / self.low) / math.log10(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * part


def _line(line: Line, scale: _Scale, chart: Chart) -> str:
    path, pen_down = [], False
    points = [(second, value) for second, value in line.points if second <= chart.end_s]
    for position, (second, value) in enumerate(points):
        if value is None:
            pen_down = False
            continue
        path.append(f"{'L' if pen_down else 'M'}{scale.x(second):.1f} {scale.y(value):.1f}")
        pen_down = True
        if chart.steps:
            until = points[position + 1][0] if position + 1 < len(points) else chart.end_s
            path.append(f"L{scale.x(until):.1f} {scale.y(value):.1f}")
    data = ";".join(f"{second:.2f},{value:.4g}" for second, value in points if value is not None)
    return (
        f'<path class="line s{line.style}" d="{"".join(path)}" data-label="{escape(line.label)}" '
        f'data-unit="{escape(chart.unit)}" data-points="{data}"/>'
    )


def _nice(low: float, high: float, count: int) -> Sequence[float]:
    """Round values from low to high, about ``count`` of them."""
    raw = max(high - low, 1e-9) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return [low + step * i for i in range(int((high - low) / step + 1e-6) + 1)]


def number(value: float | None) -> str:
    """Three significant digits, thousands apart; a dash for nothing."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
