"""Functions that several commands share."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seq2seq import console
from seq2seq.cli.options import Precision, ScoringPrecision, TextOrLines
from seq2seq.data.parallel_text import blocks, require_as_many_lines, zip_parallel
from seq2seq.errors import CorpusError, UserError
from seq2seq.files import STANDARD_INPUT
from seq2seq.languages import suggestion_for
from seq2seq.recipe.numbered import run_beside
from seq2seq.translation.text_io import Input, Line, Output, file_or_standard, reading

if TYPE_CHECKING:
    from seq2seq.evaluation.scores import Score
    from seq2seq.recipe import Recipe
    from seq2seq.translation.translator import Translator

BLOCK_LINES = 4096
"""Number of lines in a block, which are sorted by length and divided into batches. A larger block needs more memory and
delays the output."""

Block = list[tuple[Line, ...]]
Progress = Callable[[int], None]
Results = Iterator[tuple[str, dict[str, Any]]]


def load_recipe(path: Path, settings: Sequence[str] | None, planned: Mapping[Path, Recipe] | None = None,
                **training: Any) -> Recipe:
    """Load a recipe with the overrides of `--set`.

    planned: see `recipe.load_recipe`.
    training: value of each flag, by key of the `training` section; None: the flag was not given. A flag overrides a
        `--set` option of the same key.
    """
    from seq2seq import recipe

    # In a distributed training, only the main rank reads the training text, so it need not exist on other machines.
    return recipe.load_recipe(path, with_flags(settings, **training), check_files=os.environ.get("RANK", "0") == "0",
                              planned=planned)


def with_flags(settings: Sequence[str] | None, **training: Any) -> list[str]:
    """Return the overrides of `--set`, followed by those of flags for keys of the `training` section (see
    `load_recipe`)."""
    return [*(settings or ()), *(f"training.{key}={json.dumps(value)}" for key, value in training.items()
                                 if value is not None)]


def default_run(recipe: Recipe, path: Path) -> Path:
    """Return the default directory of the run of the recipe at `path`. That of a numbered recipe is beside the recipe,
    where the recipes that follow it find the run."""
    return run_beside(path) or Path("runs") / recipe.name


def require_run_directory(run: Path, option: str = "--run-dir") -> Path:
    """Return `run` if it can be the directory of a run. The directory need not exist yet."""
    for path in (run, *run.absolute().parents):
        if path.exists() and not path.is_dir():
            raise UserError(f"{option} {run}: {path} is a file. Name a directory, existing or new, for the run.")
    return run


def require_code(option: str, language: str | None) -> None:
    """Raise UserError if the value of an option is the name of a language or a country code (japanese, jp) instead of
    the language's code (ja).

    language: value of the option; None: the option was not given.
    """
    if language is not None and (suggestion := suggestion_for(language)):
        raise UserError(f"{option} {language}: not a language code.{suggestion}")


def refuse_without_effect(reason: str, **options: object) -> None:
    """Raise UserError if options are given that have no effect. options: value of each option; None: not given."""
    if given := [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]:
        raise UserError(f"{', '.join(given)}: no effect, because {reason}")


def load_translator(model: Path, device: str, precision: Precision | ScoringPrecision, threads: int | None,
                    target_language: str | None = None, tag: str | None = None, source_language: str | None = None
                    ) -> Translator:
    """Load a model with the options of the command line."""
    from seq2seq.translation.translator import Translator

    return Translator.load(model, device, precision.value, threads, target_language=target_language,
                           source_language=source_language).tagged(tag)


def with_glossary(translator: Translator, path: Path | None) -> Translator:
    """Return a translator that also keeps the terms of a glossary; see `Glossary.read`. None: there is none."""
    from seq2seq.data.glossary import Glossary

    if path is None:
        return translator
    return translator.protecting(glossary=Glossary.read(path, *translator.languages.pair))


def precision_hint(chosen: Precision, used: Collection[str]) -> str:
    """Return the end of a message that names the precision in use: if int8 is used by default, how to choose another.

    used: precisions of the models.
    """
    return "; --precision reference is slower, without the rounding of int8" * (
        chosen is Precision.auto and "int8" in used)


@contextmanager
def bar(description: str, lines: Input, written: Output | None, before: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, unless it would interfere with lines that the user reads or types on the terminal.

    written: output of the lines; None: another process writes it. before: number of lines that are finished already.
    """
    if lines.live or written is not None and written.terminal:
        yield lambda amount: None
        return
    with console.progress(description, lines.total, before) as advance:
        yield advance


def number_or(words: Sequence[str], value: str | None, option: str) -> Any:
    """Parse an option whose value is a number of at least 1 or one of `words`. Return None if it was not given."""
    if value is None or value in words:
        return value
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise UserError(f"{option} {value}: expected a number of at least 1{''.join(f', or {word}' for word in words)}.")


def require_one_standard_input(paths: Iterable[Path | None]) -> None:
    """Raise UserError if several of the paths are standard input, of which each would get a part."""
    if sum(path is None or str(path) in ("-", str(STANDARD_INPUT)) for path in paths) > 1:
        raise UserError("standard input can be read only once. Name a file instead of one of the -.")


@contextmanager
def reading_parallel(*paths: Path | None) -> Iterator[list[Input]]:
    """Open texts that match line by line. None and `-` are standard input."""
    require_one_standard_input(paths)
    with ExitStack() as stack:
        inputs = [stack.enter_context(reading(file_or_standard(path))) for path in paths]
        require_as_many_lines([text.name for text in inputs], *(text.total for text in inputs))
        yield inputs


def for_each_block(description: str, inputs: Sequence[Input], output: Output | None, format: TextOrLines,
                   work: Callable[[Block, Progress], Results], translator: Translator, size: int = BLOCK_LINES) -> None:
    """Read parallel texts in blocks, and write what `work` makes of each block, in order.

    Args:
        description: what the command does, for the progress bar.
        output: output for a line of text or of JSONL per result; None: the command writes no lines.
        work: function that gets a block and a function for the number of finished lines; it returns the results of the
            block, each as text and as a JSON object. It may raise ValueError if a line is too long for the model.
        translator: model that limits the length of the lines.
        size: number of lines in a block.
    """
    with bar(description, inputs[0], output) as advance:
        for block in blocks(zip_parallel([text.name for text in inputs], *inputs), size):
            try:
                results = list(work(block, advance))
            except ValueError as error:
                raise _too_long(translator, block, inputs) from error
            if output is not None:
                lines = (text if format is TextOrLines.text else json_line(record) for text, record in results)
                output.write("".join(f"{line}\n" for line in lines))


def _too_long(translator: Translator, block: Block, inputs: Sequence[Input]) -> CorpusError:
    """Return an error about the first line in `block` that exceeds the model's maximum length.

    inputs: the source file and the target file; for a language model, only the text file.
    """
    max_tokens = translator.max_positions
    encode_sides = (translator.encode, translator.tokenizers.target.encode)[-len(inputs) :]
    for lines in block:
        for line, file, encode in zip(lines, inputs, encode_sides, strict=True):
            pieces = len(encode([line.text])[0])
            if pieces + 1 > max_tokens:
                return CorpusError(f"{file.name}:{line.number}: {pieces:,} pieces; the model accepts at most "
                                   f"{max_tokens - 1:,}. Remove this {'pair' if len(inputs) > 1 else 'line'}, or split "
                                   "it into sentences.")
    raise AssertionError("the model refused a line that is not too long")


def json_line(record: dict[str, Any]) -> str:
    """Format a record as a line of JSONL, without line end."""
    return json.dumps(record, ensure_ascii=False)


def print_json(values: Any) -> None:
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False))


def print_table(text: str, nl: bool = True) -> None:
    """Print a report as text. On a terminal, long lines are broken between words."""
    typer.echo(console.wrapped(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text, nl=nl)


def scores_as_text(by_test: Mapping[str, Mapping[str, Score]]) -> str:
    """Format the scores of each test set as a table below its name."""
    from seq2seq.evaluation.scores import format_scores

    return "\n\n".join(f"{test}\n{format_scores(scores)}" for test, scores in by_test.items())
