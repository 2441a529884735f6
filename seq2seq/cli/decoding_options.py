"""Options of commands for the keys of the recipe's section `decoding`, made from the schema.

A command with a parameter of type `Decoding` has an option for each key, such as `--beam-size` for `beam_size`, in the
place of this parameter. A new key of the section needs no change here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from rich.markup import escape

from seq2seq.cli.options import CONSTRAINTS, MODELS, SAMPLING, SEARCH
from seq2seq.errors import OptionError, UserError

if TYPE_CHECKING:
    from seq2seq.recipe import DecodingSection
    from seq2seq.translation.translator import Translator
    from seq2seq.translation.worker_processes import TranslatorPool

PARAMETER = "decoding"
"""Name of the parameter that the options replace. Their own names begin with it, so that a command may have a parameter
with the name of a key."""
GROUPS = {
    "Results": ("n_best", "word_confidence", "safety_net"),
    CONSTRAINTS: ("ignore_case", "forbid", "require"),
    SAMPLING: ("sampling", "temperature", "top_k", "top_p", "min_p", "seed"),
    MODELS: ("ensemble_mean", "fusion_weight"),
}
"""Keys of each group of the help. All others are in the group of the search."""
LEFT_OUT = {
    # A language model has no source to cover and no second model, and its texts are checked by no rules.
    "generate": ("coverage_penalty", "max_length_ratio", "max_length_offset", "safety_net", "word_confidence",
                 "shortlist", "ensemble_mean", "fusion_weight"),
    # A request decides about the first two, and the scheduler about batches.
    "serve": ("n_best", "word_confidence", "batch_tokens", "ensemble_mean", "fusion_weight"),
}
"""Keys without effect in a command."""


def option_of(key: str) -> str:
    """Return the option of a key: `--beam-size` of beam_size."""
    return f"--{key.replace('_', '-')}"


@dataclass(frozen=True)
class DecodingOverrides:
    """Overrides of the `decoding` section of a model's recipe.

    values: new value of each overridden key. given: keys that the user has set, for messages.
    """

    values: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()

    @staticmethod
    def read(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> DecodingOverrides:
        """Return the overrides of a command line.

        Args:
            given: value of each option by key: the text of the option, a truth value or several texts.
            defaults: values of keys that are not given.
        """
        from seq2seq.recipe.yaml_document import read_yaml

        values = {**defaults, **given}
        for key, text in given.items():
            if isinstance(text, str):
                written = read_yaml(text, f"{option_of(key)} {text}", line=0)
                if written.diagnostics:
                    raise OptionError("\n".join(map(str, written.diagnostics)))
                values[key] = written.value
        return DecodingOverrides(values, tuple(given))

    def name(self, key: str) -> str:
        """Return the name of a key for messages: its option if the user has set it, else the key of the recipe."""
        return option_of(key) if key in self.given else f"decoding.{key}"

    def with_values(self, values: Mapping[str, Any]) -> DecodingOverrides:
        """Return a copy in which these keys have these values."""
        return DecodingOverrides({**self.values, **values}, self.given)

    def section(self, translator: Translator | TranslatorPool) -> DecodingSection:
        """Return the `decoding` section of a model's recipe with the overrides applied."""
        from seq2seq import recipe

        return recipe.decoding_with(translator.decoding, self.values, self.name)

    def refuse_without_effect(self, key: str, reason: str) -> None:
        """Raise UserError if the user has set `key`. reason: why the key has no effect, for the message."""
        if key in self.given:
            raise UserError(f"{self.name(key)} has no effect: {reason}")


Decoding = Annotated[DecodingOverrides, typer.Option(parser=str, hidden=True)]
"""Type of the parameter whose place the options take."""
NO_OVERRIDES = DecodingOverrides()


@cache
def decoding_options(command: str) -> list[Any]:
    """Return the options of a command, as objects of typer, in the order of the keys."""
    from seq2seq.recipe import DecodingSection
    from seq2seq.recipe.base_section import describe_keys

    texts, defaults = describe_keys(DecodingSection), _defaults(command)
    keys = [key for key in DecodingSection.model_fields if key not in LEFT_OUT.get(command, ())]
    parameters = []
    for key in keys:
        entry = DecodingSection.model_fields[key]
        kind: Any = str | None
        name, metavar, repeat = option_of(key), _placeholder(entry.annotation), ""
        if entry.annotation is bool:
            name, kind, metavar = f"{name}/--no-{name.removeprefix('--')}", bool | None, ""
        elif get_origin(entry.annotation) is tuple:
            kind, repeat = list[str] | None, " Can be repeated."
        shown = (_shown(defaults[key]) if key in defaults else
                 "the recipe's" if entry.default is None else f"the recipe's, else {_shown(entry.default)}")
        group = next((group for group, members in GROUPS.items() if key in members), SEARCH)
        option = typer.Option(name, metavar=metavar or None, help=_first_sentence(texts[key], keys) + repeat,
                              show_default=shown, rich_help_panel=group)
        parameters.append(inspect.Parameter(f"{PARAMETER}_{key}", inspect.Parameter.KEYWORD_ONLY, default=None,
                                            annotation=Annotated[kind, option]))

    def template() -> None:
        """Function whose parameters typer converts."""

    template.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    template.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    application = typer.Typer(add_completion=False)
    application.command()(template)
    return typer.main.get_command(application).params


def take_overrides(command: str, parameters: dict[str, Any]) -> DecodingOverrides:
    """Remove the values of `decoding_options` from the parameters of a call of a command, and return them."""
    prefix = f"{PARAMETER}_"
    values = {name.removeprefix(prefix): parameters.pop(name) for name in list(parameters) if name.startswith(prefix)}
    return DecodingOverrides.read({key: tuple(value) if isinstance(value, list) else value
                                   for key, value in values.items() if value not in (None, [], ())},
                                  _defaults(command))


def _defaults(command: str) -> dict[str, Any]:
    """Return the values of keys for which a command does not use those of the recipe."""
    from seq2seq.recipe.decoding_section import SINGLE_SAMPLE

    return {"translate": {"n_best": 1}, "generate": SINGLE_SAMPLE}.get(command, {})


def _shown(value: Any) -> str:
    return "none" if value == () else str(value).lower() if isinstance(value, bool) else str(value)


def _placeholder(annotation: Any) -> str:
    """Return the placeholder of a value in the help: N for a number of things, X for another number, the words that are
    allowed, or TEXT."""
    if annotation in (int, float, NoneType):
        return {int: "N", float: "X", NoneType: ""}[annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return " | ".join(arguments)
    if get_origin(annotation) is Annotated:
        return _placeholder(arguments[0])
    if get_origin(annotation) is tuple:
        return "TEXT"
    return " | ".join(filter(None, map(_placeholder, arguments)))


def _first_sentence(text: str, keys: Sequence[str]) -> str:
    """Return the first sentence about a key, and those after it that begin with a number. keys: names that are replaced
    by their options."""
    def plain(quoted: re.Match[str]) -> str:
        return option_of(quoted[1]) if quoted[1] in keys else quoted[1]

    sentence = re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join(text.split()))[0]
    return escape(re.sub(r"`([^`]+)`", plain, sentence))
