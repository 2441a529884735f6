"""Options that several commands have, and how their help is laid out."""

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from seq2seq.errors import UserError
from seq2seq.recipe.model_sizes import model_sizes


class Precision(StrEnum):
    """Numbers to compute in."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    int8 = "int8"


class TrainingPrecision(StrEnum):
    """Numbers to train in."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class TextOrLines(StrEnum):
    """Output formats with a line for each line of input."""

    text = "text"
    jsonl = "jsonl"


class TextOrJson(StrEnum):
    """Formats of reports."""

    text = "text"
    json = "json"


class Metric(StrEnum):
    """Metrics of translations."""

    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"
    exact = "exact"


def _as_typed(parameters: list[Any], context: Any) -> list[Any]:
    """Have the help show beside each parameter what is to be typed after its name: typer would show types of Python,
    `<bool>` of a flag that takes nothing and `<list[Path]>` of an argument that has a name already."""
    for parameter in parameters:
        if not hasattr(parameter, "display_type"):                              # an older typer shows no types
            continue
        if parameter.param_type_name == "argument":
            parameter.display_type = lambda ctx: ""
        elif parameter.metavar is None:
            parameter.metavar = "" if parameter.is_flag else parameter.display_type(context).strip("<>")
    return parameters


def _as_setting(option: str, typed: Sequence[str]) -> str | None:
    """Return the KEY=VALUE of `--set` that means the same as an unknown option; None if it is not a decoding key.

    typed: all arguments of the command, which include the option and its value.
    """
    from seq2seq.recipe import DecodingSection

    fields = DecodingSection.model_fields
    key = option.removeprefix("--").replace("-", "_")
    positive = key.removeprefix("no_")                                          # --no-ignore-case sets ignore_case
    if positive in fields and fields[positive].annotation is bool:
        return f"decoding.{positive}={str(key == positive).lower()}"
    if key not in fields:
        return None
    inline = [argument.partition("=")[2] for argument in typed if argument.startswith(f"{option}=")]
    following = [value for argument, value in zip(typed, typed[1:], strict=False) if argument == option]
    return f"decoding.{key}={next(iter([*inline, *following]), 'VALUE')}"


def _without_braces(pieces: list[str]) -> list[str]:
    """The parts of a usage line; typer puts required arguments in braces, as if these were to be typed."""
    return [piece.replace("{", "").replace("}", "") for piece in pieces]


class Command(TyperCommand):
    """A subcommand whose help shows what is to be typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:                                              # typer has copies of click's classes
            option = getattr(error, "option_name", None)
            options = {name for parameter in self.params for name in parameter.opts}
            if option and option not in options and "--set" in options and (setting := _as_setting(option, typed)):
                raise UserError(f"{option} is now --set {shlex.quote(setting)}") from None
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_typed(super().get_params(ctx), ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _without_braces(super().collect_usage_pieces(ctx))


class CommandGroup(TyperGroup):
    """The command whose subcommands are `Command`s."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_typed(super().get_params(ctx), ctx)


def examples(*lines: str) -> str:
    """Return the examples at the end of a command's help. The empty lines keep typer from joining them."""
    return "\n\n".join(["[bold]Examples[/bold]", *(line.replace("[", r"\[") for line in lines)])


SEARCH, MACHINE, FORMAT = "Search", "Machine", "Output"
CONSTRAINTS, SAMPLING, MODELS = "What a translation must hold", "Sampling", "Several models"
RecipeFile = Annotated[Path, typer.Argument(
    metavar="RECIPE", show_default=False,
    help=f"A recipe, in YAML. Its `model: {{base: SIZE}}` is one of {', '.join(model_sizes())}, or a file.")]
Overrides = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", show_default=False,
    help="Use another value than the recipe's, such as training.max_steps=200. May be given again.")]
DecodingSettings = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", show_default=False, rich_help_panel=SEARCH,
    help="Use another value than the recipe's for any decoding option, such as decoding.mbr=32. May be given again; "
    "recipes/REFERENCE.md lists the keys.")]
Model = Annotated[Path, typer.Argument(
    metavar="MODEL", help="A bundle, or a run (its best model).", show_default=False)]
Device = Annotated[str, typer.Option(
    metavar="D", help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one.", rich_help_panel=MACHINE)]
PrecisionOption = Annotated[Precision, typer.Option(
    help="Numbers to compute in; auto is bf16 where the processor has it, else fp32. int8 translates fastest on a "
    "CPU; its first use compiles kernels for this processor, which takes some seconds and a C++ compiler.",
    rich_help_panel=MACHINE)]
TrainingDevice = Annotated[str | None, typer.Option(
    "--device", metavar="D", help="cpu, cuda, cuda:1, …; auto takes a GPU if there is one. Short for --set "
    "training.device=D.", show_default="the recipe's", rich_help_panel=MACHINE)]
TrainingPrecisionOption = Annotated[TrainingPrecision | None, typer.Option(
    "--precision", help="Numbers to compute in; auto is bf16 where the processor has it, else fp32. Short for --set "
    "training.precision=….", show_default="the recipe's", rich_help_panel=MACHINE)]
TrainingThreads = Annotated[int | None, typer.Option(
    "--threads", metavar="N", min=1, max=1024, help="Threads of the CPU. Short for --set training.threads=N.",
    show_default="the recipe's, else one a core", rich_help_panel=MACHINE)]
Workers = Annotated[int, typer.Option(
    metavar="N", min=1, max=1024, help="Workers that translate side by side, with one thread each unless --threads "
    "says otherwise: faster than one with many threads. In int8 they share the model; else each is a process with "
    "its own.",
    rich_help_panel=MACHINE)]
Compile = Annotated[bool, typer.Option("--compile", hidden=True)]
Temperature = Annotated[float | None, typer.Option(
    metavar="X", help="Below 1 the probable is drawn more often, above 1 less.", show_default="the recipe's",
    rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option(
    metavar="P", help="Draw from the fewest pieces whose probabilities reach P.", show_default="the recipe's",
    rich_help_panel=SAMPLING)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a bundle that is there.")]
Threads = Annotated[int | None, typer.Option(
    metavar="N", min=1, max=1024, help="Threads of the CPU.", show_default="one a core", rich_help_panel=MACHINE)]
