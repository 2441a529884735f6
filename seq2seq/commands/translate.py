"""`seq2seq translate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seq2seq import console
from seq2seq.commands.common import bar, json_line, load_translator
from seq2seq.errors import UserError
from seq2seq.options import (
    FORMAT,
    SEARCH,
    Device,
    Model,
    Precision,
    PrecisionOption,
    TextOrLines,
    Threads,
    Workers,
    examples,
)
from seq2seq.textio import Line, reading, through, writing

if TYPE_CHECKING:
    from seq2seq.translator import Translation, Translator
    from seq2seq.workers import TranslatorPool


EXAMPLES = examples("seq2seq translate runs/multi30k_de_en < test.de > test.en",
                    "seq2seq translate model test.de --output test.en --beam-size 1",
                    "seq2seq translate model test.de --n-best 3 --format jsonl",
                    "seq2seq translate model corpus.de.gz --output corpus.en --workers 8",
                    "seq2seq translate model    (and type)")


def translate(
    model: Model,
    input: Annotated[Path | None, typer.Argument(
        metavar="INPUT", help="A text file, one sentence a line (may end in .gz).",
        show_default="standard input")] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", rich_help_panel=FORMAT, show_default="standard output",
        help="Where the translations go. The file gets its name when it is complete, until then it ends in .part.")] =
        None,
    format: Annotated[TextOrLines, typer.Option(
        help="A line of text or a JSON object for each line of input.", rich_help_panel=FORMAT)] = TextOrLines.text,
    n_best: Annotated[int, typer.Option(
        metavar="N", min=1, help="Translations of each line; more than one need --format jsonl.",
        rich_help_panel=FORMAT)] = 1,
    beam_size: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Hypotheses kept for each sentence; 1 is greedy and fastest.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    length_penalty: Annotated[float | None, typer.Option(
        metavar="X", min=0, help="Above the recipe's for longer translations, below for shorter.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    device: Device = "auto",
    precision: PrecisionOption = Precision.auto,
    threads: Threads = None,
    workers: Workers = 1,
) -> None:
    """Translate text: one line out for each line in, always.

    A line ends at a newline alone. Empty lines come back as they are; a line too long for the model is translated in
    parts, which are joined.
    """
    if n_best > 1 and format is TextOrLines.text:
        raise UserError("--n-best gives several translations of a line, but text has one line for each line of input. "
                        "Add --format jsonl.")
    with (reading(input) as lines, writing(output) as written,
          _translators(model, device, precision, threads, workers) as translator):
        decoding = _decoding(translator, beam_size, length_penalty, n_best)
        if lines.live:
            console.say("Type a line and press Enter; Ctrl-D ends.")
        with bar("translating", lines, written) as advance:
            def translated(texts: Iterator[str]) -> Iterator[list[Translation]]:
                return translator.translate_stream(texts, 1 if lines.live else 8192, progress=advance, **decoding)

            for line, found in through(lines, translated):
                if format is TextOrLines.text:
                    written.write(found[0].text + line.ending)
                else:
                    written.write(json_line(_translation_record(line, found, n_best)) + line.ending[-1:])


@contextmanager
def _translators(model: Path, device: str, precision: Precision, threads: int | None,
                 workers: int) -> Iterator[Translator | TranslatorPool]:
    """One translator, or several as one; says what it computes in."""
    if workers == 1:
        translator = load_translator(model, device, precision, threads)
        console.say(f"translating in {translator.precision} on {translator.device}")
        yield translator
        return
    from seq2seq.workers import TranslatorPool

    with TranslatorPool(model, workers, device, precision.value, threads or 1) as pool:
        console.say(f"translating in {pool.precision}, {workers} workers")
        yield pool


def _decoding(translator: Translator | TranslatorPool, beam_size: int | None, length_penalty: float | None,
              n_best: int) -> dict[str, Any]:
    """What differs from the recipe's `decoding` section.

    Raises:
        UserError: the beam is too narrow.
    """
    beam = beam_size or translator.decoding.beam_size
    if n_best > beam:
        raise UserError(f"a beam of {beam} cannot give {n_best} translations. Add --beam-size {n_best}.")
    given = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best}
    return {name: value for name, value in given.items() if value is not None}


def _translation_record(line: Line, found: Sequence[Translation], n_best: int) -> dict[str, Any]:
    best = found[0]
    record = {"line": line.number, "source": line.text, "translation": best.text, "score": best.score,
              "log_probability": best.log_probability, "tokens": best.tokens, "parts": best.parts}
    if n_best > 1:
        record["n_best"] = [{"translation": one.text, "score": one.score, "log_probability": one.log_probability,
                             "tokens": one.tokens} for one in found]
    return record
