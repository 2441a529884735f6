"""Functions that several commands share."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from seq2seq import console
from seq2seq.cli.options import Precision
from seq2seq.errors import CorpusError, UserError
from seq2seq.recipe.language_codes import code_for
from seq2seq.translation.text_io import Input, Line, Output

if TYPE_CHECKING:
    from seq2seq.analysis.attention_maps import Aligner
    from seq2seq.evaluation.scores import Score
    from seq2seq.recipe import DecodingSection, Recipe
    from seq2seq.translation.translator import Translator
    from seq2seq.translation.worker_processes import TranslatorPool


def load_recipe(path: Path, settings: Sequence[str] | None, **training: Any) -> Recipe:
    """Load a recipe with the overrides of `--set`.

    training: keys of the `training` section that have options of their own; None: option not given.
    Raises:
        UserError: one of these keys is given twice, or the recipe has mistakes.
    """
    from seq2seq import recipe

    given = {key: value for key, value in training.items() if value is not None}
    for key in given:
        if any(setting.partition("=")[0].strip() == f"training.{key}" for setting in settings or ()):
            raise UserError(f"--{key} is short for --set training.{key}, which is given too. Leave one of both out.")
    short = [f"training.{key}={json.dumps(value)}" for key, value in given.items()]
    return recipe.load_recipe(path, [*(settings or ()), *short])


def default_run(recipe: Recipe) -> Path:
    """Return the default directory of a recipe's run."""
    return Path("runs") / recipe.name


def require_run_directory(run: Path, option: str = "--run-dir") -> Path:
    """Return the directory of a run, which may not exist yet.

    Raises:
        UserError: the path or one of its parents is a file.
    """
    for place in (run, *run.absolute().parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"{option} {run}: {place} is a file. Name a directory, or a new one; a run is kept in it.")
    return run


def require_code(option: str, language: str | None) -> None:
    """Raises UserError if an option names a language otherwise than by its code; None: the option was not given."""
    if language is not None and (code := code_for(language)):
        raise UserError(f"{option} {language}: this is no code of a language, such as {code}. Write the code.")


def require_model_first(command: str, model: Path, *texts: Path | None) -> None:
    """Raises UserError if a file stands where a command takes its model, and a model where it takes text."""
    if not model.is_file():
        return
    from seq2seq.storage.checkpoints import is_model

    for text in texts:
        if text is not None and text.is_dir() and is_model(text):
            others = [model, *(other for other in texts if other not in (None, text))]
            order = shlex.join(map(str, ["seq2seq", command, text, *others]))
            raise UserError(f"{model} is a file and {text} a model, but the model comes first: {order}")


def require_no_bundle(output: Path, overwrite: bool) -> None:
    """Raises UserError if there is a model where a command is to write one, unless --overwrite was given. What is no
    bundle is never replaced, see `save_bundle`."""
    from seq2seq.storage.directories import kind_of

    if not overwrite and kind_of(output) == "bundle":
        raise UserError(f"{output} is a bundle already. It is left as it is; name a new directory, or add --overwrite "
                        "to replace it.")


def load_translator(model: Path, device: str, precision: Precision, threads: int | None) -> Translator:
    """Load a model with the options of the command line."""
    from seq2seq.translation.translator import Translator

    return Translator.load(model, device, precision.value, threads)


@contextmanager
def bar(description: str, lines: Input, written: Output, before: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, unless it would interfere with lines that the user reads or types on the terminal.

    before: number of lines already done.
    """
    if lines.live or written.terminal:
        yield lambda amount: None
        return
    with console.progress(description, lines.total, before) as advance:
        yield advance


def decoding_with(translator: Translator | TranslatorPool, given: Mapping[str, Any]) -> DecodingSection:
    """Return the `decoding` section of a model's recipe with the overrides of the command line.

    Raises:
        OptionError: an invalid value; names the option.
    """
    from seq2seq import recipe

    return recipe.decoding_with(translator.decoding, given,
                                lambda key: f"--{key.replace('_', '-')} (or decoding in the recipe)")


def number_or(words: Sequence[str], value: str | None, option: str) -> Any:
    """Parse an option whose value is a number from 1 or one of `words`; None if it was not given.

    Raises:
        UserError: the value is neither.
    """
    if value is None or value in words:
        return value
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise UserError(f"{option} {value}: say a number from 1{''.join(f', or {word}' for word in words)}.")


def measured_aligner(model: Path) -> Aligner:
    """Return the alignment settings that were measured best for a model, or the default ones."""
    from seq2seq.analysis.attention_maps import Aligner
    from seq2seq.storage.checkpoints import bundle_metadata, resolve_model_path

    bundle = resolve_model_path(model)
    return Aligner.from_metadata(bundle_metadata(bundle), f"the metadata of {bundle}")


def too_long(translator: Translator, block: Sequence[tuple[Line, ...]], *inputs: Input) -> CorpusError:
    """Return the error that names the line that is too long for the model.

    inputs: source and target, or the text of a language model.
    """
    most = translator.max_positions
    tokenizers = (translator.tokenizers.source, translator.tokenizers.target)[-len(inputs) :]
    for lines in block:
        for line, file, tokenizer in zip(lines, inputs, tokenizers, strict=True):
            pieces = len(tokenizer.encode([line.text])[0])
            if pieces + 1 > most:
                return CorpusError(f"{file.name}:{line.number}: {pieces:,} pieces; the model takes {most - 1:,}. "
                                   f"Leave this {'pair' if len(inputs) > 1 else 'line'} out, or cut it into sentences.")
    raise AssertionError("the model refused a line that it has room for")


def json_line(record: dict[str, Any]) -> str:
    """Format a record as a line of JSONL, without line end."""
    return json.dumps(record, ensure_ascii=False)


def print_json(values: Any) -> None:
    """Print a report as JSON."""
    typer.echo(json.dumps(values, indent=2, ensure_ascii=False))


def scores_as_text(by_test: dict[str, dict[str, Score]]) -> str:
    """Format the scores of each test set as a table below its name."""
    from seq2seq.evaluation.scores import format_scores

    return "\n\n".join(f"{test}\n{format_scores(scores)}" for test, scores in by_test.items())
