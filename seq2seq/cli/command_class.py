"""Classes of commands: the layout of their help, and the parsing of their options."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from seq2seq.cli.decoding_options import PARAMETER, decoding_options, take_overrides
from seq2seq.cli.options import PAIRS, TEXTS
from seq2seq.errors import OptionError


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


def _with_repeated(args: Sequence[str], options: Collection[str]) -> Iterator[str]:
    """Yield the arguments with options of PAIRS or TEXTS in the form of the parser: `--valid A --valid B` for
    `--valid A B`. All files up to the next option belong to it, so none of them becomes training text in silence."""
    option, has_value = "", True
    for argument in args:
        name, equals, value = argument.partition("=")
        if argument.startswith("-") and argument != "-":
            _require(has_value, option)
            option, has_value = (name, bool(equals)) if name in options else ("", True)
            if not option:
                yield argument
            elif equals:
                yield from (option, value)
        elif option:
            yield from (option, argument)
            has_value = True
        else:
            yield argument
    _require(has_value, option)


def _require(has_value: bool, option: str) -> None:
    if not has_value:
        raise OptionError(f"{option} has no file.")


class Command(TyperCommand):
    """Subcommand whose help shows placeholders instead of Python types, and no hidden arguments. A parameter of type
    `Decoding` becomes the options of the recipe's section `decoding`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {name for parameter in self.params if parameter.metavar in (PAIRS, TEXTS) for name in parameter.opts
                   if name.startswith("--")}
        return super().parse_args(ctx, list(_with_repeated(args, several)) if several else args)

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = []
        for parameter in super().get_params(ctx):
            found += decoding_options(self.name or "") if parameter.name == PARAMETER else [parameter]
        return _with_placeholders(found, ctx)

    def invoke(self, ctx: Any) -> Any:
        if any(parameter.name == PARAMETER for parameter in self.params):
            ctx.params[PARAMETER] = take_overrides(self.name or "", ctx.params)
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        hidden = [piece for parameter in self.params if getattr(parameter, "hidden", False)
                  for piece in parameter.get_usage_pieces(ctx)]
        return [piece.replace("{", "").replace("}", "")                         # around required arguments, by typer
                for piece in super().collect_usage_pieces(ctx) if piece not in hidden]


class CommandGroup(TyperGroup):
    """The command `seq2seq` itself, whose help shows placeholders instead of Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_placeholders(super().get_params(ctx), ctx)
