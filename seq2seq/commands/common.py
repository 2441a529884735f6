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
from seq2seq.options import Precision
from seq2seq.textio import Input, Output

if TYPE_CHECKING:
    from seq2seq.evaluation import Score
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
