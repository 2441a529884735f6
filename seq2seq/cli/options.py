"""Options that several commands have, and the layout of the help."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from seq2seq.errors import UserError
from seq2seq.recipe.model_sizes import model_sizes

PAIR_OR_TABLE = "SOURCE TARGET | TABLE"
"""Placeholder of the options that have two files, or one file with both sides, as their value."""


class Precision(StrEnum):
    """Number formats of translation and scoring."""

    auto = "auto"
    reference = "reference"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    int8 = "int8"


class TrainingPrecision(StrEnum):
    """Number formats of training."""

    auto = "auto"
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"


class TextOrLines(StrEnum):
    """Formats of output that is written line by line."""

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


def _with_placeholders(parameters: list[Any], context: Any) -> list[Any]:
    """Set the placeholder (metavar) that the help shows after the name of each parameter, such as FILE.

    By default typer shows Python types, such as `<bool>` or `<list[Path]>`. Flags and arguments get no placeholder:
    a flag has no value, and the name of an argument is enough. Returns the parameters.
    """
    for parameter in parameters:
        if not hasattr(parameter, "display_type"):                              # older versions of typer show no types
            continue
        if parameter.param_type_name == "argument":
            parameter.display_type = lambda ctx: ""
        elif parameter.metavar is None:
            placeholder = "" if parameter.is_flag else parameter.display_type(context).strip("<>")
            parameter.metavar = placeholder.replace("|", " | ")                 # lines of the help break at spaces
    return parameters


def _as_setting(option: str, typed: Sequence[str]) -> str | None:
    """Return the value of `--set` that replaces an unknown option: decoding.mbr=32 for `--mbr 32`.

    Returns None if the `decoding` section has no such key. typed: all arguments of the command line after the command.
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


def _with_repeated(args: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """Yield the arguments with options of PAIR_OR_TABLE in the form of the parser: `--valid A --valid B` for
    `--valid A B`. A file with both sides has no second file."""
    from seq2seq.recipe.data_section import is_table

    remaining = list(args)
    while remaining:
        option, equals, value = remaining.pop(0).partition("=")
        if option not in options or not (equals or remaining):
            yield f"{option}{equals}{value}"
            continue
        first = value if equals else remaining.pop(0)
        yield from (option, first)
        if not is_table(first) and remaining and not remaining[0].startswith("-"):
            yield from (option, remaining.pop(0))


class Command(TyperCommand):
    """Subcommand whose help shows placeholders instead of Python types, and no hidden arguments.

    If the user gives a decoding key as an option, such as `--mbr 32`, the error names the equivalent `--set` option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs = {name for parameter in self.params if parameter.metavar == PAIR_OR_TABLE for name in parameter.opts
                 if name.startswith("--")}
        args = list(_with_repeated(args, pairs)) if pairs else args
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:                                      # raised by click, or by typer's copy of click
            option = getattr(error, "option_name", None)
            options = {name for parameter in self.params for name in parameter.opts}
            if option and option not in options and "--set" in options and (setting := _as_setting(option, typed)):
                raise UserError(f"there is no option {option}; use --set {shlex.quote(setting)}") from None
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_placeholders(super().get_params(ctx), ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        hidden = [piece for parameter in self.params if getattr(parameter, "hidden", False)
                  for piece in parameter.get_usage_pieces(ctx)]
        return [piece.replace("{", "").replace("}", "")                         # around required arguments, by typer
                for piece in super().collect_usage_pieces(ctx) if piece not in hidden]


class CommandGroup(TyperGroup):
    """The command `seq2seq` itself, whose help shows placeholders instead of Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_placeholders(super().get_params(ctx), ctx)


def examples(*lines: str) -> str:
    """Format example commands for the end of a command's help. Empty lines keep typer from joining the commands."""
    return "\n\n".join(["[bold]Examples[/bold]", *(line.replace("[", r"\[") for line in lines)])


SEARCH, MACHINE, FORMAT = "Search", "Machine", "Output"
CONSTRAINTS, SAMPLING, MODELS = "Constraints", "Sampling", "Several models"
RecipeFile = Annotated[Path, typer.Argument(
    metavar="RECIPE", show_default=False,
    help="A recipe in YAML. Its key model.base names a model size "
    f"({', '.join(model_sizes())}) or the file of a model configuration.")]
Overrides = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", show_default=False,
    help="Override a key of the recipe, such as training.max_steps=200. Can be repeated.")]
DecodingSettings = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", show_default=False, rich_help_panel=SEARCH,
    help="Override a key of the recipe's decoding section, such as decoding.mbr=32. Can be repeated. "
    "recipes/REFERENCE.md lists all keys.")]
Model = Annotated[Path, typer.Argument(
    metavar="MODEL", help="A bundle, or a run (its best model).", show_default=False)]
Device = Annotated[str, typer.Option(
    metavar="D", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one.", rich_help_panel=MACHINE)]
PrecisionOption = Annotated[Precision, typer.Option(
    help="Number format. int8 is for CPUs, bf16 and fp16 are for GPUs. reference: fp32 on a CPU, on a GPU the first of "
    "bf16, fp16 and fp32 that it supports. auto: int8, the fastest on a CPU, unless the model does not allow it or "
    "loses more than 0.3 BLEU by it (measured at the end of training); otherwise reference.",
    rich_help_panel=MACHINE)]
TrainingDevice = Annotated[str | None, typer.Option(
    "--device", metavar="D", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one. Short for --set "
    "training.device=D.", show_default="the recipe's", rich_help_panel=MACHINE)]
TrainingPrecisionOption = Annotated[TrainingPrecision | None, typer.Option(
    "--precision", help="Number format; auto is the first of bf16, fp16 and fp32 that the hardware supports. Short "
    "for --set training.precision=….", show_default="the recipe's", rich_help_panel=MACHINE)]
TrainingThreads = Annotated[int | None, typer.Option(
    "--threads", metavar="N", min=1, max=1024, help="Number of CPU threads. Short for --set training.threads=N.",
    show_default="the recipe's, else one per core", rich_help_panel=MACHINE)]
Workers = Annotated[int, typer.Option(
    metavar="N", min=1, max=1024, help="Number of workers that translate in parallel. Each worker uses one thread, or "
    "the number in --threads. Several workers are faster than one worker with many threads. In int8, and in fp32 on "
    "a CPU, the workers share one copy of most models; otherwise each worker is a process with its own copy.",
    rich_help_panel=MACHINE)]
BeamSize = Annotated[int | None, typer.Option(
    metavar="N", min=1, help="Number of hypotheses kept for each sentence; 1 is greedy search, the fastest.",
    show_default="the recipe's", rich_help_panel=SEARCH)]
Temperature = Annotated[float | None, typer.Option(
    metavar="X", help="Softmax temperature. A value below 1 sharpens the distribution, a value above 1 flattens "
    "it.",
    show_default="the recipe's", rich_help_panel=SAMPLING)]
TopP = Annotated[float | None, typer.Option(
    metavar="P", help="Sample from the smallest set of pieces (subwords) whose probabilities add up to at least P.",
    show_default="the recipe's", rich_help_panel=SAMPLING)]
TargetLanguage = Annotated[str | None, typer.Option(
    metavar="CODE", help="Language to translate into, if the model has several target languages.",
    show_default="the recipe's")]
LineTag = Annotated[str | None, typer.Option(
    "--tag", metavar="TAG", help="Tag of all lines: one of those in data.train of the model's recipe, such as '<law>'.",
    show_default="that with which a line begins")]
Threads = Annotated[int | None, typer.Option(
    metavar="N", min=1, max=1024, help="Number of CPU threads.", show_default="one per core", rich_help_panel=MACHINE)]
