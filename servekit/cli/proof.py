"""How a record of a proof looks."""

from __future__ import annotations

import click

from servekit.cli import output
from servekit.domain.proof import PrecisionResult, Record, Tolerance


def show_record(record: Record) -> None:
    """The device, what was asked, the error table and what was chosen."""
    versions = ", ".join(f"{key} {value}" for key, value in record.versions.items() if value and key != "servekit")
    driver = f", driver {record.device.driver}" if record.device.driver else ""
    click.echo(f"  proven on {record.device}{driver}: {versions}, {record.created}")
    if record.examples:
        told = f"  {len(record.examples)} example(s) answered alone and in batches of "
        told += ", ".join(map(str, record.batches.sizes))
        if record.batches.max_rel is not None:
            told += f" (influence of the batch {record.batches.max_rel:.1e})"
        click.echo(f"{told}; a malformed item {record.batches.malformed}")
    if record.precisions:
        limits = Tolerance(record.tolerance, record.tolerance.get("top1", 0.0))
        click.echo()
        output.print_table(
            ("PRECISION", "MAX ERROR", "MEAN ERROR", "TOP-1", "MS A BATCH", "WEIGHTS", "ACTIVATIONS", "VERDICT"),
            [_row(row, record, limits) for row in record.precisions],
        )
        click.echo()
    for row in record.precisions:
        if row.problem:
            click.echo(f"  {row.precision}: {row.problem}")
        if row.layers:
            click.echo(f"  {row.precision}: the error starts at {'; '.join(row.layers)}")
    if record.chosen:
        click.echo(f"  precision {record.chosen}: {record.reason}")
    else:
        click.echo(f"  precision: {record.reason}")
    if record.trained:
        click.echo(f"  {record.trained}")


def _row(row: PrecisionResult, record: Record, limits: Tolerance) -> tuple[str, ...]:
    largest = row.memory[-1] if row.memory else None
    return (
        row.precision,
        "-" if row.max_rel is None else f"{row.max_rel:.1e}",
        "-" if row.mean_rel is None else f"{row.mean_rel:.1e}",
        "-" if row.top1 is None else f"{row.top1:.1%}",
        "-" if row.batch_ms is None else f"{row.batch_ms:.2f}",
        "-" if largest is None else f"{largest.weights_mib:.0f} MiB",
        "-" if largest is None else f"{largest.activations_mib:.0f} MiB",
        _verdict(row, record, limits),
    )


def _verdict(row: PrecisionResult, record: Record, limits: Tolerance) -> str:
    if row.problem:
        return "not measured (below)"
    problem = limits.beyond(row)
    if problem:
        return problem
    if row.max_rel is None:
        return row.compared
    return "chosen" if row.precision == record.chosen else "passes"
