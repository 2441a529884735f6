"""The command line: one subcommand, one public call.

Exit codes: 0 done; 2 the user can mend it, and the message says how; 1 a defect of ours; 130 and 143 stopped by signal;
141 the reader of our output has gone. Results go to standard output, everything else to standard error.
What takes long to import (torch, sacreBLEU, the recipe's schema) is imported by the command that needs it.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from seq2seq import __version__, console
from seq2seq.cli import (
    align,
    attention,
    average,
    check,
    evaluate,
    export,
    generate,
    import_,
    rescore,
    score,
    train,
    translate,
    verify_resume,
)
from seq2seq.cli.options import Command, CommandGroup
from seq2seq.errors import UserError
from seq2seq.signals import Stopped
from seq2seq.translation.text_io import OutputClosed

# What no program can help: a full disk, a file or directory that may not be written.
OUTSIDE_OUR_POWER = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
# In the order of the help.
COMMANDS = (check, train, translate, generate, score, rescore, evaluate, align, attention, average, import_, export,
            verify_resume)

app = typer.Typer(
    name="seq2seq", cls=CommandGroup, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]},
    help="Train translation models from recipes, translate text, evaluate with BLEU.",
    epilog="A first model: seq2seq check RECIPE, seq2seq train RECIPE, seq2seq translate runs/NAME < TEXT\n\n"
    "For commands and options on the Tab key: seq2seq --install-completion, then open a new shell.",
)


@app.callback(invoke_without_command=True)
def global_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Options before any command."""
    if version:
        typer.echo(f"seq2seq {__version__}")
        raise typer.Exit


def unwrapped(docstring: str) -> str:
    """A docstring with one line for each paragraph: the width of the terminal decides where lines end."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in docstring.split("\n\n"))


for command in COMMANDS:
    name = command.__name__.rpartition(".")[2]
    run = getattr(command, name)
    app.command(name.rstrip("_").replace("_", "-"), cls=Command, help=unwrapped(run.__doc__),
                epilog=command.EXAMPLES)(run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. arguments: those of the process, if not given."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="seq2seq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UserError as error:
        print(console.escape_control_characters(str(error)), file=sys.stderr)
        return 2
    except Stopped as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except OutputClosed:
        return 141
    except Exception as error:
        if isinstance(error, OSError) and error.errno in OUTSIDE_OUR_POWER:
            print(console.escape_control_characters(f"{error.filename or 'A file'}: {error.strerror}. Make room or "
                                                    "check the permissions, and run the same command again."),
                  file=sys.stderr)
            return 2
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            print(console.escape_control_characters(f"{error.filename}: {error.strerror}. Choose a shorter name."),
                  file=sys.stderr)
            return 2
        if _lacks_memory(error):
            print(f"Memory does not suffice ({type(error).__name__}). What was saved is intact. Use a smaller model or "
                  "smaller batches (training.batch_tokens, decoding.batch_tokens).", file=sys.stderr)
            return 2
        traceback.print_exc()
        print("\nThis is a defect of seq2seq. Please report it with the lines above.", file=sys.stderr)
        return 1
    return 0


def _lacks_memory(error: Exception) -> bool:
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from seq2seq.devices import is_out_of_memory

    return is_out_of_memory(error)
