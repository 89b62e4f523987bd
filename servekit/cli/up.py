"""``servekit up``."""

from __future__ import annotations

import dataclasses
import os
import shlex
from pathlib import Path

import click

from servekit.cli import output
from servekit.domain.plan import Link, MakeFolder, RunCommand, StartProcess, WriteFile
from servekit.verbs import ready
from servekit.verbs import up as verb


@click.command(
    "up",
    epilog="\b\nExamples:\n"
    "  servekit up                       every model of servekit.toml, on all GPUs\n"
    "  servekit up digits --gpus 0       one model of model_store/ on GPU 0\n"
    "  servekit up a b --gpus 0,1        two models, workers spread over two GPUs\n"
    "  servekit up digits --gpus none --name cpu\n"
    "  servekit up digits --dry-run      the plan, the files and the exact command line",
)
@click.argument("models", nargs=-1, metavar="[MODEL ...]")
@click.option("--gpus", metavar="0|0,1|all|none", help="GPUs by index. Default: all visible, or none.")
@click.option("--runtime", type=click.Choice(["auto", "docker", "local"]), help="Default: auto.")
@click.option("--name", default="default", show_default=True, help="Name of this deployment.")
@click.option("--port", type=click.IntRange(1, 65531), help="First of five ports. Default: 8080 or next free.")
@click.option(
    "--calibrate/--no-calibrate",
    default=True,
    help="Measure a model that has no record of this GPU (60 s at most). Default: do.",
)
@click.option(
    "--require-signature",
    type=click.Path(path_type=Path),
    metavar="PUB",
    help="Refuse archives and proofs that this key did not sign.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    models: tuple[str, ...],
    gpus: str | None,
    runtime: str | None,
    name: str,
    port: int | None,
    calibrate: bool,
    require_signature: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Start TorchServe on chosen GPUs; wait until every worker answers."""
    request = verb.UpRequest(models, gpus, runtime, name, port, calibrate, require_signature)
    if dry_run:
        prepared = verb.prepare(request, Path.cwd())
        _show_plan(prepared, as_json)
        return
    state, rows = verb.up(request, Path.cwd(), output.progress)
    if as_json:
        output.print_json({"deployment": state.to_dict(), "workers": [dataclasses.asdict(row) for row in rows]})
        return
    show_workers(rows)
    click.echo(f"\n{state.name} is up at {state.inference_url}  (stop it: servekit down --name {state.name})")
    for model in state.models:
        click.echo(f"  POST {state.inference_url}/predictions/{model.name}")
    if state.auth:
        click.echo(f"  token: servekit token show --name {state.name} --curl")


def show_workers(rows: tuple[ready.Row, ...]) -> None:
    """The table of workers; ``known by`` says whether the driver, the worker or only the plan told the GPU."""
    output.print_table(
        ("MODEL", "VERSION", "PID", "STATUS", "GPU", "KNOWN BY", "PRECISION", "READY", "CANARY"),
        [
            (
                row.model,
                row.version,
                str(row.pid),
                row.status,
                row.gpu,
                row.checked,
                row.precision,
                f"{row.ready_s:.1f} s" if row.ready_s is not None else "-",
                row.canary or "-",
            )
            for row in rows
        ],
    )


def _show_plan(prepared: verb.Prepared, as_json: bool) -> None:
    steps = [_describe(step) for step in prepared.plan.steps]
    if as_json:
        placement = _placement(prepared)
        output.print_json({"notes": prepared.plan.notes, "workers": placement, "steps": steps})
        return
    for note in prepared.plan.notes:
        click.echo(note)
    click.echo()
    output.print_table(
        ("MODEL", "WORKER", "GPU", "DEVICE IN THE SERVER"),
        [(row["model"], str(row["worker"]), row["gpu"], row["device"]) for row in _placement(prepared)],
    )
    click.echo()
    for step in steps:
        click.echo(step)
    click.echo("\nDry run: nothing was changed.")


def _placement(prepared: verb.Prepared) -> list[dict[str, str]]:
    deployment = prepared.deployment
    rows = []
    for model in deployment.models:
        for number, gpu in enumerate(deployment.gpus.worker_gpus(model.workers)):
            device = f"cuda:{number % deployment.gpus.count}" if gpu else "cpu"
            rows.append({"model": model.name, "worker": str(number), "gpu": str(gpu or "cpu"), "device": device})
    return rows


def _describe(step: MakeFolder | WriteFile | Link | StartProcess | RunCommand) -> str:
    match step:
        case MakeFolder():
            return f"folder  {step.path}"
        case WriteFile():
            body = "".join(f"        | {line}\n" for line in step.text.splitlines())
            return f"file    {step.path}" + (f"\n{body.rstrip()}" if step.path.suffix != ".xml" else "")
        case Link():
            return f"link    {step.path} -> {step.target}"
        case StartProcess():
            changed = {k: v for k, v in sorted(step.env.items()) if os.environ.get(k) != v}
            env = " ".join(f"{key}={shlex.quote(value)}" for key, value in changed.items())
            return (
                f"start   cd {shlex.quote(str(step.cwd))} && umask {step.umask:04o} && {env} \\\n        "
                + shlex.join(step.argv)
            )
        case RunCommand():
            return f"run     {shlex.join(step.argv)}"
