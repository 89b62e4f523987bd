"""``servekit loadtest``."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from servekit.cli import output
from servekit.domain.load import Record, percentile
from servekit.domain.report import LoadReport
from servekit.errors import SloError
from servekit.verbs.loadtest import LoadRequest, loadtest


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic only in newer click
    """``30``, ``30s``, ``1.5m`` or ``500ms``."""

    name = "TIME"
    _UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}  # noqa: RUF012

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(ms|s|m|h|)", str(value).strip())
        if not match:
            self.fail(f"{value!r} is no time; write 30s, 500ms or 2m.", param, ctx)
        return float(match.group(1)) * self._UNITS[match.group(2)]


@click.command(
    "loadtest",
    epilog="\b\nExamples:\n"
    "  servekit loadtest --model digits --payload seven.png\n"
    "  servekit loadtest --model digits --payload images/ --users 64 --duration 2m\n"
    "  servekit loadtest --model digits --payload images/ --slo 'p99<50ms,errors<0.1%' && echo ship it",
)
@click.option("--model", required=True, help="A model of the deployment.")
@click.option("--payload", required=True, type=click.Path(path_type=Path), help="A file, or a folder: in turn.")
@click.option("--name", help="Deployment. Default: the only one of this project.")
@click.option("--users", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Requests in flight.")
@click.option("--duration", type=Seconds(), default="30s", show_default=True, help="Measured time.")
@click.option("--warmup", type=Seconds(), default="5s", show_default=True, help="Before it; not counted.")
@click.option("--slo", help="Objective, e.g. 'p99<50ms,errors<0.1%,throughput>100/s'; sets the exit code.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the report.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    model: str,
    payload: Path,
    name: str | None,
    users: int,
    duration: float,
    warmup: float,
    slo: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Load a model with Locust; write report.json and report.html.

    A closed loop: each of the users sends its next request when the last one was answered. Exit code 11
    says that the objective was missed, 130 that Ctrl-C ended the test (the report is written all the same).
    """
    if duration <= 0:
        raise click.BadParameter("must be more than nothing.", param_hint="--duration")
    words = "servekit " + shlex.join(sys.argv[1:])
    request = LoadRequest(model, payload, name, users, duration, warmup, slo, out, words)
    live = _Live(warmup, warmup + duration)
    tested = loadtest(Path.cwd(), request, live.show)
    live.end()
    if tested.unproven:
        output.progress(tested.unproven)
    if as_json:
        output.print_json(tested.report.to_dict())
    else:
        _summary(tested.report)
        replaced = "  (replaces the one before)" if tested.replaced else ""
        click.echo(f"\nreport: {tested.folder / 'report.html'}{replaced}")
    if tested.interrupted:
        raise KeyboardInterrupt
    missed = [verdict for verdict in tested.report.verdicts if not verdict.met]
    if missed:
        told = ", ".join(f"{v.clause.text} (measured {_number(v.measured)})" for v in missed)
        raise SloError(f"The objective was missed: {told}.", hint=f"See {tested.folder / 'report.html'}")


class _Live:
    """One line that is rewritten on a terminal; a line every five seconds elsewhere."""

    def __init__(self, warmup_s: float, total_s: float) -> None:
        self.warmup_s, self.total_s, self.shown, self.last = warmup_s, total_s, -5.0, 0.0
        self.terminal = sys.stderr.isatty()

    def show(self, now_s: float, fresh: Sequence[Record]) -> None:
        span, self.last = max(now_s - self.last, 0.1), now_s
        good = sorted(record.latency_ms for record in fresh if record.ok)
        phase = "warm-up" if now_s < self.warmup_s else "measuring"
        latencies = f"p50 {percentile(good, 50):.1f} ms  p99 {percentile(good, 99):.1f} ms" if good else "no answers"
        errors = f"  errors {len(fresh) - len(good)}" if len(fresh) > len(good) else ""
        line = f"{phase:9} {now_s:5.0f}/{self.total_s:.0f} s  {len(good) / span:7.0f} requests/s  {latencies}{errors}"
        if self.terminal:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
        elif now_s - self.shown >= 5:
            self.shown = now_s
            output.progress(line)

    def end(self) -> None:
        if self.terminal:
            click.echo(err=True)


def _summary(report: LoadReport) -> None:
    stats = report.stats
    if not stats.sent:
        click.echo("Nothing was measured: the test ended before its warm-up did.")
        return
    click.echo(
        f"{stats.throughput:,.1f} requests/s with {report.profile.users} in flight, "
        f"{stats.sent:,} sent in {stats.window_s:.0f} s, {stats.errors_percent:.2f} % failed"
    )
    if stats.latency:
        names = [name for name, _ in stats.latency.percentiles] + ["max"]
        output.print_table(("LATENCY", *names), [("ms", *(f"{stats.latency.value(name):.2f}" for name in names))])
    for failure in stats.failures[:5]:
        click.echo(f"failed: {failure.count} x HTTP {failure.status or '-'} {failure.message}")
    for load in report.gpus:
        click.echo(
            f"{load.gpu}: busy {_number(load.use_mean)} %, memory {_number(load.memory_max_mib)} MiB, "
            f"power {_number(load.power_mean_w)} W, {_number(load.energy_per_request_j)} J a request"
        )
    if report.gpu_note:
        click.echo(report.gpu_note)
    for verdict in report.verdicts:
        click.echo(f"{'met   ' if verdict.met else 'MISSED'}  {verdict.clause.text}  ({_number(verdict.measured)})")
    if report.client_limited:
        click.echo("The load generator was busy all the time: the server may be able to do more than this.")


def _number(value: float | None) -> str:
    return "not available" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
