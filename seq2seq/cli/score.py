"""`seq2seq score`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seq2seq.cli.common import bar, json_line, load_translator, require_model_first, too_long
from seq2seq.cli.options import FORMAT, Device, Model, Precision, PrecisionOption, TextOrLines, Threads, examples
from seq2seq.errors import UserError
from seq2seq.translation.text_io import Input, Line, blocks_of_pairs, reading, require_as_many_lines, writing

if TYPE_CHECKING:
    from seq2seq.translation.translator import Translator

# Pairs scored together: enough to sort them by length, few enough to hold any corpus.
SCORED_TOGETHER = 8192


EXAMPLES = examples("seq2seq score model test.de test.en > scores",
                    "seq2seq score model test.de test.en --format jsonl",
                    "seq2seq score language_model test.en")


def score(
    model: Model,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Text, one sentence a line.", show_default=False)],
    target: Annotated[Path | None, typer.Argument(
        metavar="TARGET", help="Its translation, line by line. A language model scores SOURCE and takes none.",
        show_default=False)] = None,
    format: Annotated[TextOrLines, typer.Option(
        help="A number or a JSON object for each pair.", rich_help_panel=FORMAT)] = TextOrLines.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.fp32,
    threads: Threads = None,
) -> None:
    """Log-probability of each given translation, or of each text: 0 is certain, -2 is 14 %, -20 is 1 in 500 million.

    It is a natural logarithm (its unit is called nat), the sum over the pieces (subwords of the model's vocabulary) and
    the end of the sentence.
    """
    require_model_first("score", model, source, target)
    with ExitStack() as stack:
        names = ("source", "target") if target else ("text",)
        inputs = [stack.enter_context(reading(path)) for path in (source, target) if path]
        written = stack.enter_context(writing(None))
        if target:
            require_as_many_lines(*inputs)
        translator = load_translator(model, device, precision, threads)
        _require_sides(translator, model, target)
        advance = stack.enter_context(bar("scoring", inputs[0], written))
        for block in _blocks(inputs):
            # Text alone is the target of an empty source. The model translates without the white space around a line.
            pairs = [("" if len(lines) == 1 else lines[0].text.strip(), lines[-1].text.strip()) for lines in block]
            try:
                scores = translator.score(pairs, progress=advance)
            except ValueError as error:
                raise too_long(translator, block, *inputs) from error
            for lines, found in zip(block, scores, strict=True):
                if format is TextOrLines.text:
                    written.write(f"{found.log_probability:.6f}\n")
                else:
                    written.write(json_line({
                        "line": lines[0].number, **{name: line.text for name, line in zip(names, lines, strict=True)},
                        "log_probability": found.log_probability, "tokens": found.tokens}) + "\n")


def _blocks(inputs: Sequence[Input]) -> Iterator[Sequence[tuple[Line, ...]]]:
    """Lines of one input, or of two side by side, some thousands at a time."""
    if len(inputs) == 2:
        yield from blocks_of_pairs(inputs[0], inputs[1], SCORED_TOGETHER)
    else:
        from seq2seq.data.preparation import blocks  # not earlier: it imports torch

        yield from blocks(((line,) for line in inputs[0]), SCORED_TOGETHER)


def _require_sides(translator: Translator, model: Path, target: Path | None) -> None:
    """Raises UserError if a language model is given translations, or another model none."""
    if not translator.task.has_source and target:
        raise UserError(f"{model} is a language model, which scores text alone; leave {target} out.")
    if translator.task.has_source and not target:
        raise UserError(f"{model} scores translations; name the file of TARGET sentences too.")
