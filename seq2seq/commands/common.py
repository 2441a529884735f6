"""What several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from seq2seq import console
from seq2seq.errors import CorpusError, UserError
from seq2seq.options import Precision
from seq2seq.textio import Input, Line, Output

if TYPE_CHECKING:
    from seq2seq.evaluation import Score
    from seq2seq.inspection import Aligner
    from seq2seq.recipe import Recipe
    from seq2seq.translator import Translator


def load_recipe(path: Path, settings: Sequence[str] | None) -> Recipe:
    """The recipe in a file, with what `--set` changes."""
    from seq2seq import recipe

    return recipe.load_recipe(path, settings or ())


def default_run(recipe: Recipe) -> Path:
    """Where a recipe's run is kept unless --run-dir says otherwise."""
    return Path("runs") / recipe.name


def load_translator(model: Path, device: str, precision: Precision, threads: int | None) -> Translator:
    """The model that an option names, ready to translate."""
    from seq2seq.translator import Translator

    return Translator.load(model, device, precision.value, threads)


@contextmanager
def bar(description: str, lines: Input, written: Output) -> Iterator[Callable[[int], None]]:
    """Progress with lines a second, unless it would be drawn between the lines that a person reads or types."""
    if lines.live or written.terminal:
        yield lambda amount: None
        return
    began, done = monotonic(), 0
    with console.progress(description, lines.total) as show:
        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            show(amount, f"{done / max(monotonic() - began, 1e-9):,.0f} lines/s")

        yield advance


def number_or(words: Sequence[str], value: str | None, option: str) -> Any:
    """A number from 1, or one of `words`, as an option gives it; None if it was not given.

    Raises:
        UserError: it is neither.
    """
    if value is None or value in words:
        return value
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise UserError(f"{option} {value}: say a number from 1{''.join(f', or {word}' for word in words)}.")


def measured_aligner(model: Path) -> Aligner:
    """How the words of a model are aligned best, as far as it was measured."""
    from seq2seq.checkpoint import bundle_metadata, resolve_model_path
    from seq2seq.inspection import Aligner

    bundle = resolve_model_path(model)
    return Aligner.measured(bundle_metadata(bundle), f"the metadata of {bundle}")


def too_long(translator: Translator, block: Sequence[tuple[Line, Line]], sources: Input,
             targets: Input) -> CorpusError:
    """Which pair the model could not take."""
    most = translator.model.max_positions
    sides = ((sources.name, translator.tokenizers.source, 0), (targets.name, translator.tokenizers.target, 1))
    for pair in block:
        for name, tokenizer, side in sides:
            pieces = len(tokenizer.encode([pair[side].text])[0])
            if pieces + 1 > most:
                return CorpusError(f"{name}:{pair[side].number}: {pieces:,} pieces; the model takes {most - 1:,}. "
                                   "Leave this pair out, or cut it into sentences.")
    raise AssertionError("the model refused a pair that it has room for")


def json_line(record: dict[str, Any]) -> str:
    """A record of JSONL, without its line end."""
    return json.dumps(record, ensure_ascii=False)


def print_json(values: Any) -> None:
    """Print a report as JSON."""
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False))


def scores_as_text(by_test: dict[str, dict[str, Score]]) -> str:
    """The scores of each test set as a table below its name."""
    from seq2seq.evaluation import format_scores

    return "\n\n".join(f"{test}\n{format_scores(scores)}" for test, scores in by_test.items())
