"""The command line: groups, lazy loading, and the one place where errors are shown."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from servekit import __version__
from servekit.cli import output
from servekit.errors import ServekitError, StorageError
from servekit.system.signals import raise_on_termination

# name -> (group, one line). The table keeps ``servekit --help`` from importing a single command.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("Start", "Write a commented servekit.toml."),
    "package": ("Package", "Turn weights, a model class and a handler into a proven .mar."),
    "verify": ("Package", "Prove an archive on this host; add the record beside it."),
    "inspect": ("Package", "Show what an archive holds and what is proven of it."),
    "list": ("Package", "Show the archives in model_store/."),
    "prune": ("Package", "Remove what no deployment needs."),
    "keygen": ("Package", "Make a key pair for signatures."),
    "build": ("Start", "Build the Docker image that `up --runtime docker` runs."),
    "up": ("Serve", "Start TorchServe on chosen GPUs; wait until every worker answers."),
    "status": ("Serve", "Show deployments, workers, GPUs and precision."),
    "logs": ("Serve", "Print or follow a deployment's logs."),
    "predict": ("Serve", "Send one file to a model."),
    "token": ("Serve", "Show or rotate the access token."),
    "down": ("Serve", "Stop a deployment and remove what it left."),
    "loadtest": ("Judge", "Load a model with Locust; write report.json and report.html."),
}


# What the disk answers to any command, wherever it looks: for the user to mend, no fault of ours.
_OF_THE_DISK = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


class LazyGroup(click.Group):
    """A group whose commands live in ``servekit.cli.<name>`` as ``command``, imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"servekit.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in dict.fromkeys(group for group, _ in COMMANDS.values()):
            with formatter.section(group):
                formatter.write_dl([(name, line) for name, (g, line) in COMMANDS.items() if g == group])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if near:
                raise click.UsageError(f"{error.message} Did you mean {near[0]}?", ctx) from None
            raise


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExamples:\n"
    "  servekit init\n"
    "  servekit package digits.pt --name digits --model model.py:DigitsCNN --handler image\n"
    "  servekit up digits --gpus 0\n"
    "  servekit loadtest --model digits --payload digit.png --slo 'p99<50ms,errors<0.1%'",
)
@click.version_option(__version__, prog_name="servekit")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Package a PyTorch model, serve it with TorchServe on chosen GPUs, prove what it delivers."""
    ctx.obj = {"debug": debug}


def show_error(error: ServekitError) -> None:
    """Evidence first, then what is wrong, then what to do; all on stderr."""
    if error.detail:
        output.progress(error.detail.rstrip() + "\n")
    output.progress(click.style("Error: ", fg="red", bold=True) + error.message)
    if error.hint:
        output.progress(click.style("Next:  ", fg="cyan", bold=True) + error.hint)


def _show_internal(error: Exception) -> None:
    output.progress(f"Error: internal error, please report it: {type(error).__name__}: {error}")
    output.progress("Next:  run the same command with --debug for the traceback.")


def main(argv: Sequence[str] | None = None) -> Any:
    """Run the command line and exit with a documented code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    if debug:  # accepted anywhere on the line
        args = [arg for arg in args if arg != "--debug"]
    raise_on_termination()
    try:
        code = cli.main(args=args, prog_name="servekit", standalone_mode=False, obj={"debug": debug})
    except ServekitError as error:
        if debug:
            raise
        show_error(error)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        output.progress("Interrupted.")
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        output.silence(sys.stdout)  # its reader (head, less) left
        sys.exit(0)
    except OSError as error:
        if debug:
            raise
        if error.errno not in _OF_THE_DISK or not error.filename:
            _show_internal(error)
            sys.exit(1)
        hint = "Check who owns it, its permissions and the free space there."
        show_error(StorageError(f"{error.filename}: {error.strerror}.", hint=hint))
        sys.exit(StorageError.exit_code)
    except Exception as error:
        if debug:
            raise
        _show_internal(error)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
