"""`seq2seq rescore`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seq2seq.cli.common import bar, json_line, load_translator
from seq2seq.cli.options import FORMAT, Device, Precision, PrecisionOption, TextOrLines, Threads, examples
from seq2seq.errors import CorpusError, UserError
from seq2seq.json_reader import parse_json
from seq2seq.translation.text_io import Input, file_or_standard, reading, writing

if TYPE_CHECKING:
    from seq2seq.translation.line_translator import Translation
    from seq2seq.translation.rescoring import Rescored

# Lines rescored together: enough translations to sort them by length.
LINES_TOGETHER = 1024

EXAMPLES = examples(
    "seq2seq translate de_en test.de --beam-size 10 --n-best 10 --format jsonl > n_best.jsonl",
    "seq2seq rescore n_best.jsonl --model language_model --weight 0.1 > test.en",
    "seq2seq rescore n_best.jsonl --model other_de_en --weight 1 --model language_model --weight 0.2 --format jsonl")


def rescore(
    input: Annotated[Path | None, typer.Argument(
        metavar="N_BEST", help="Translations as `seq2seq translate --n-best N --format jsonl` writes them; - is "
        "standard input.", show_default="standard input")] = None,
    model: Annotated[list[Path] | None, typer.Option(
        metavar="MODEL", help="A translation or a language model, of any vocabulary. May be given again.",
        show_default=False)] = None,
    weight: Annotated[list[float] | None, typer.Option(
        metavar="X", help="How much the log-probability of a --model counts beside that of the search; one for each, "
        "in their order.", show_default=False)] = None,
    length_penalty: Annotated[float, typer.Option(
        metavar="X", min=0, help="Exponent of the length that the sum is divided by; take that of the search.")] = 1.0,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="Where the result goes.", rich_help_panel=FORMAT,
        show_default="standard output")] = None,
    format: Annotated[TextOrLines, typer.Option(
        help="The best translation of each line, or all of them as JSON.", rich_help_panel=FORMAT)] = TextOrLines.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.fp32,
    threads: Threads = None,
) -> None:
    """Choose anew among the translations of each line, with the log-probabilities of more models.

    The score of a translation becomes (log p of the search + sum of weight * log p of each model) / pieces^penalty,
    where log p is a natural logarithm and pieces are the subwords that the search has counted. One line out for each
    line in.
    """
    models, weights = model or [], weight or []
    if not models or len(models) != len(weights):
        raise UserError(f"{len(models)} --model and {len(weights)} --weight were given; name at least one model, and "
                        "give each its weight.")
    with reading(file_or_standard(input)) as lines, writing(file_or_standard(output)) as written:
        weighted = [(load_translator(path, device, precision, threads), each)
                    for path, each in zip(models, weights, strict=True)]
        from seq2seq.data.preparation import blocks
        from seq2seq.translation.rescoring import rescore as choose

        with bar("rescoring", lines, written) as advance:
            for block in blocks(_records(lines), LINES_TOGETHER):
                found = choose([record["source"] for record, _ in block], [ways for _, ways in block], weighted,
                               length_penalty)
                for (record, _), rescored in zip(block, found, strict=True):
                    if format is TextOrLines.text:
                        written.write(f"{rescored[0].translation.text}\n")
                    else:
                        written.write(json_line(_record(record, rescored, models)) + "\n")
                advance(len(block))


def _records(lines: Input) -> Iterator[tuple[dict[str, Any], list[Translation]]]:
    """Each line's JSON object with its translations. Raises CorpusError where it is none."""
    from seq2seq.translation.line_translator import Translation

    for line in lines:
        where = f"{lines.name}:{line.number}"
        try:
            record = parse_json(line.text)
            ways = [Translation(way["translation"], float(way["score"]), float(way["log_probability"]),
                                int(way["tokens"]), int(record.get("parts", 1))) for way in record["n_best"]]
            if not ways or not isinstance(record["source"], str) or not all(map(_is_a_line, ways)):
                raise ValueError("no line of text")
        except (ValueError, KeyError, TypeError, OverflowError):
            raise CorpusError(f"{where}: expected an object with the keys source and n_best, as "
                              "`seq2seq translate --n-best 5 --format jsonl` writes it.") from None
        yield record, ways


def _is_a_line(way: Translation) -> bool:
    return isinstance(way.text, str) and "\n" not in way.text and (way.tokens > 0 or not way.text.strip())


def _record(record: dict[str, Any], rescored: list[Rescored], models: list[Path]) -> dict[str, Any]:
    """The object of a line, its translations in their new order."""
    def described(one: Rescored) -> dict[str, Any]:
        way: Translation = one.translation
        return {"translation": way.text, "score": way.score, "log_probability": way.log_probability,
                "tokens": way.tokens,
                "log_probabilities": dict(zip(map(str, models), one.log_probabilities, strict=False))}

    ways = [described(one) for one in rescored]
    best = {key: value for key, value in ways[0].items() if key != "log_probabilities"}
    return {**record, **best, "n_best": ways}
