"""LoadReport -> report.html: one offline file."""

from __future__ import annotations

from servekit.domain.load import LoadStats
from servekit.domain.report import LoadReport
from servekit.render.chart import Chart, Line, number, svg


def report_html(report: LoadReport) -> str:
    """The whole page. Everything that came from outside is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("servekit.render"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["number"] = number
    charts = [(chart, Markup(svg(chart))) for chart in _charts(report)]  # noqa: S704 - chart.svg escapes
    return environment.get_template("report.html.j2").render(r=report, headline=_headline(report), charts=charts)


def _headline(report: LoadReport) -> str:
    """Did it pass, how much, how fast, on what: in one sentence."""
    stats, profile = report.stats, report.profile
    where = ", ".join(load.gpu.name for load in report.gpus) or "the CPU"
    if not stats.sent:
        return f"Nothing was measured: the test of {profile.model} ended before its warm-up did."
    if stats.latency is None:
        return f"{profile.model} answered none of {stats.sent:,} requests on {where}."
    p50, p99 = stats.latency.value("p50"), stats.latency.value("p99")
    return (
        f"{profile.model} delivered {number(stats.throughput)} requests/s on {where}, with {profile.users} in flight: "
        f"half answered within {number(p50)} ms, 99 % within {number(p99)} ms, {number(stats.errors_percent)} % failed."
    )


def _charts(report: LoadReport) -> list[Chart]:
    stats, end, warmup = report.stats, report.elapsed_s, report.profile.warmup_s
    charts = [
        Chart(
            "Latency",
            "ms",
            tuple(_line(stats, name, style) for style, name in enumerate(("p50", "p95", "p99"))),
            end,
            warmup,
            f"Of the requests in flight in each {number(stats.bucket_s)} s, so that a stall shows as long as it lasts.",
            steps=True,
        ),
        Chart(
            "Throughput",
            "requests/s",
            (_line(stats, "throughput", 0, "answered"), _line(stats, "errors", 4, "failed")),
            end,
            warmup,
            "By the second in which the answer came.",
            steps=True,
        ),
    ]
    gpu_charts = (
        ("GPU busy", "%", "use", "Time in which at least one kernel ran (NVML utilisation); not occupancy."),
        ("GPU memory in use", "MiB", "memory_mib", "Of the whole card, also by other processes."),
        ("GPU power", "W", "power_w", "Of the whole board."),
        ("GPU temperature", "°C", "temperature_c", ""),
        ("SM clock", "MHz", "sm_clock_mhz", ""),
    )
    for title, unit, field, note in gpu_charts:
        lines = [
            Line(
                str(load.gpu),
                tuple((sample.t_s, getattr(sample, field)) for sample in load.samples if sample.t_s >= 0),
                position % 5,
            )
            for position, load in enumerate(report.gpus)
        ]
        if any(value is not None for line in lines for _, value in line.points):
            charts.append(Chart(title, unit, tuple(lines), end, warmup, note))
    return charts


def _line(stats: LoadStats, field: str, style: int, label: str | None = None) -> Line:
    points = tuple((bucket.start_s, getattr(bucket, field)) for bucket in stats.series)
    return Line(label or field, points, style)
