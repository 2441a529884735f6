"""`seq2seq score`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import seq2seq.cli.options as options
from seq2seq.cli.common import Block, Progress, Results, for_each_block, load_translator, reading_parallel
from seq2seq.errors import UserError
from seq2seq.translation.text_io import LineWarnings, UnseenCharacters, writing

if TYPE_CHECKING:
    from seq2seq.translation.translator import Translator

EXAMPLES = ("seq2seq score model test.de test.en > scores",
            "seq2seq score model test.de test.en --format jsonl",
            "seq2seq score language_model test.en")


def score(
    model: options.Model,
    source: options.SourceFile,
    target: Annotated[Path | None, typer.Argument(
        metavar="TARGET", help="Translation of SOURCE, line by line; - is standard input, for one of the two. "
        "Leave it out for a language model.",
        show_default=False)] = None,
    format: Annotated[options.TextOrLines, typer.Option(
        help="text: a number for each pair. jsonl: a JSON object for each pair.", rich_help_panel=options.FORMAT)] =
        options.TextOrLines.text,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    tag: options.LineTag = None,
    device: options.Device = "auto",
    precision: options.ScoringPrecisionOption = options.ScoringPrecision.fp32,
    threads: options.Threads = None,
) -> None:
    """Print the log-probability of each given translation, or of each line of text for a language model.

    The log-probability is a natural logarithm (in nats), summed over the pieces (subwords of the model's vocabulary)
    and the end of the sentence. For example, 0 is a probability of 1, -2 is a probability of 14 %, and -20 is a
    probability of 1 in 500 million.
    """
    names = ("source", "target") if target else ("text",)
    with reading_parallel(*(path for path in (source, target) if path)) as inputs, writing(None) as output:
        translator = load_translator(model, device, precision, threads, target_language, tag, source_language)
        _require_sides(translator, model, target)
        from seq2seq.tokenizers.canonical_text import is_blank
        from seq2seq.tokenizers.context import PreviousSentences
        from seq2seq.tokenizers.source import as_source
        from seq2seq.translation.scoring import pair_scores

        reader, previous = translator.reader, PreviousSentences(translator.context)
        one_sided = LineWarnings(" and ".join(text.name for text in inputs), "pairs have text on only one side")
        unseen = UnseenCharacters(inputs[0].name)

        def scored(block: Block, progress: Progress) -> Results:
            # A language model has an empty source.
            pairs = [("" if len(lines) == 1 else previous.source(reader.source(lines[0].text)), lines[-1].text)
                     for lines in block]
            for (line, *_), (source_text, target_text) in zip(block, pairs, strict=True):
                if target and is_blank(as_source(source_text).text) != is_blank(target_text):
                    one_sided.warn(line.place, "only one side has text; the other one is scored as an empty text")
            for lines, score in zip(block, pair_scores(translator, pairs, progress), strict=True):
                unseen.add(lines[0].place, translator.unseen(lines[0].text))
                texts = {name: line.text for name, line in zip(names, lines, strict=True)}
                yield f"{score.log_probability:.6f}", {
                    "line": lines[0].number, **texts, "log_probability": score.log_probability, "tokens": score.tokens}

        for_each_block("scoring", inputs, output, format, scored, translator)
        one_sided.finish()
        unseen.finish()


def _require_sides(translator: Translator, model: Path, target: Path | None) -> None:
    """Raise UserError if a language model has a TARGET file, or if a translation model has no TARGET file."""
    if not translator.task.has_source and target:
        raise UserError(f"{model} is a language model, which scores a single text; leave {target} out.")
    if translator.task.has_source and not target:
        raise UserError(f"{model} is a translation model; name the TARGET file, too.")
