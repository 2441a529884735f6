"""The command line. Each module of this package is one subcommand.

Exit codes:
    0: success.
    1: a bug in seq2seq.
    2: an error that the user can fix. The message says how.
    130, 143: SIGINT or SIGTERM stopped the command.
    141: the program that reads standard output, such as `head`, has closed it.

Results go to standard output, everything else to standard error. Packages that are slow to import (torch, sacreBLEU,
the recipe schema) are imported inside the commands that need them.
"""

from __future__ import annotations

import errno
import importlib.metadata
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from seq2seq import __version__, console
from seq2seq.cli import (
    adapt,
    align,
    attention,
    average,
    check,
    compare,
    evaluate,
    export,
    generate,
    import_,
    init,
    prepare,
    report,
    rescore,
    score,
    serve,
    shortlist,
    train,
    translate,
    tune,
)
from seq2seq.cli.command_class import Command, CommandGroup
from seq2seq.devices import is_out_of_memory
from seq2seq.errors import UserError
from seq2seq.signals import Stopped
from seq2seq.translation.text_io import OutputClosed

# Errors of the file system that the user can fix: no space or quota left, no permission, a read-only file system, a
# name that is too long.
FILE_SYSTEM_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
# The subcommands, in the order of the help.
COMMANDS = (init, check, prepare, train, adapt, translate, serve, generate, score, rescore, evaluate, compare, tune,
            report, align, attention, average, shortlist, import_, export)

# Packages that translation in int8 or fp32 on a CPU does not need (runtime.txt lacks them), and some other commands do.
PACKAGES_OF_SOME_COMMANDS = ("torch", "datasets", "pyarrow", "tensorboard")


def global_options(
    version: Annotated[bool, typer.Option(
        "--version", help="Print the versions of seq2seq and PyTorch, and the kernels of this machine, and exit.",
        is_eager=True)] = False,
) -> None:
    """Handle the options that come before the command."""
    if version:
        from seq2seq.devices import CPU_PRECISIONS
        from seq2seq.inference.engines import describe_kernels

        torch = importlib.metadata.version("torch") if find_spec("torch") else "not installed"
        kernels = map(describe_kernels, CPU_PRECISIONS)
        typer.echo("\n".join([f"seq2seq {__version__}", *kernels, f"PyTorch: {torch}"]))
        raise typer.Exit


def unwrapped(docstring: str) -> str:
    """Join the lines of each paragraph of a docstring, so that the terminal's width decides where lines break."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))


def examples(lines: Sequence[str]) -> str:
    """Format example commands for the end of a command's help. Empty lines keep typer from joining the commands."""
    return "\n\n".join(["[bold]Examples[/bold]", *(line.replace("[", r"\[") for line in lines)])


def application(words: Sequence[str]) -> typer.Typer:
    """Return the application for a command line: with the command that it names, because converting all of them takes
    time, or with all commands, for messages and completion. The list of commands needs none of their parameters."""
    app = typer.Typer(
        name="seq2seq", cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False,
        rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]},
        help="Train translation models from recipes, translate text, evaluate with BLEU.",
        epilog="To train and use a first model: seq2seq init train.de train.en --output mine, seq2seq train "
        "mine/recipe.yaml, seq2seq translate runs/mine < TEXT\n\nTo complete commands and options with the Tab key: "
        "seq2seq --install-completion, then open a new shell.",
    )
    app.callback(invoke_without_command=True)(global_options)
    commands = {command.__name__.rpartition(".")[2]: command for command in COMMANDS}
    names = {name.rstrip("_").replace("_", "-"): name for name in commands}
    for name in words[:1] if words and words[0] in names else names:
        command = commands[names[name]]
        run = getattr(command, names[name])
        app.command(name, cls=Command, help=unwrapped(run.__doc__), epilog=examples(command.EXAMPLES))(
            (lambda: None) if words[:1] in (["--help"], ["-h"]) else run)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    arguments: arguments of the command line, without the name of the program; None: the arguments in sys.argv.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # On Windows, a file or pipe has the encoding of the country by default, which lacks most characters.
    if sys.platform == "win32" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    console.silence(int(os.environ.get("WORLD_SIZE", 1)) > 1 and int(os.environ.get("RANK", 0)) > 0)
    try:
        return _run(words)
    finally:
        console.silence(False)


def _run(words: Sequence[str]) -> int:
    """Run a command, print its error if it has one, and return its exit code."""
    try:
        return application(words)(args=words, prog_name="seq2seq", standalone_mode=False) or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        console.print_error(str(error))
        return 2
    except Stopped as error:
        if str(error):
            console.print_message(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except OutputClosed:
        return 141
    except Exception as error:
        if hasattr(error, "format_message"):                            # raised by click, or by typer's copy of click
            return _refuse_command_line(error)
        if isinstance(error, OSError) and error.errno in FILE_SYSTEM_ERRORS:
            message = (f"{error.filename or 'A file'}: {error.strerror}. Free disk space, check the permissions, or "
                       "choose a shorter name, and run the command again.")
            console.print_error(message)
            return 2
        if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES_OF_SOME_COMMANDS:
            console.print_error(f"This needs the package {error.name}, which is missing. To install it: pip install "
                               f"{error.name}")
            return 2
        if is_out_of_memory(error):
            console.print_error(f"Out of memory ({type(error).__name__}). Saved files are intact. Use a smaller model "
                               "or smaller batches (training.batch_tokens, decoding.batch_tokens).")
            return 2
        traceback.print_exc()
        console.print_message("")
        console.print_error("This is a bug in seq2seq, or in a package that it uses. Please report it with the "
                            "lines above.")
        return 1


def _refuse_command_line(error: Any) -> int:
    """Print an error of the command line, such as an unknown option, without the box that typer draws, which breaks
    long paths. Returns the exit code."""
    if message := error.format_message():                               # empty after the help of `seq2seq` alone
        context = getattr(error, "ctx", None)
        help_of = "" if context is None else f"\n{context.command_path} -h lists arguments and options."
        console.print_error(f"{message.replace('Value error, ', '')}{help_of}")
    return 2
