"""`seq2seq generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from seq2seq import console
from seq2seq.cli.common import bar, decoding_with, json_line, load_translator, require_model_first
from seq2seq.cli.options import (
    FORMAT,
    SAMPLING,
    Device,
    MinP,
    Precision,
    PrecisionOption,
    Temperature,
    TextOrLines,
    Threads,
    TopK,
    TopP,
    examples,
)
from seq2seq.errors import UserError
from seq2seq.translation.text_io import Input, Line, file_or_standard, reading, through, writing

EXAMPLES = examples("seq2seq generate language_model --samples 5",
                    'seq2seq generate language_model --prompt "A man" --samples 3 --top-p 0.9 --seed 7',
                    "seq2seq generate language_model beginnings.en --greedy --format jsonl",
                    "seq2seq generate language_model - < beginnings.en")

# Drawing from one piece: the most probable.
GREEDY = {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0}


def generate(
    model: Annotated[Path, typer.Argument(
        metavar="MODEL", help="A language model: a bundle, or a run (its best model).", show_default=False)],
    input: Annotated[Path | None, typer.Argument(
        metavar="INPUT", help="A text file of beginnings, one a line (may end in .gz or .zst); - is standard input.",
        show_default="the model begins")] = None,
    prompt: Annotated[list[str] | None, typer.Option(
        metavar="TEXT", help="How the text begins. May be given again.", show_default=False)] = None,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Texts for each beginning.")] = 1,
    max_length: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Pieces of a text at most, its beginning included.",
        show_default="the recipe's, or 100", rich_help_panel=SAMPLING)] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    greedy: Annotated[bool, typer.Option(
        "--greedy", help="Draw nothing: take the most probable piece each time.", rich_help_panel=SAMPLING)] = False,
    seed: Annotated[int | None, typer.Option(
        metavar="N", min=0, help="Decides the samples, with the numbers of beginning and sample.",
        show_default="the recipe's", rich_help_panel=SAMPLING)] = None,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="Where the texts go.", rich_help_panel=FORMAT,
        show_default="standard output")] = None,
    format: Annotated[TextOrLines, typer.Option(
        help="A line of text or a JSON object for each text.", rich_help_panel=FORMAT)] = TextOrLines.text,
    device: Device = "auto",
    precision: PrecisionOption = Precision.auto,
    threads: Threads = None,
) -> None:
    """Texts from a language model: each begins as asked and goes on as the model has learnt.

    Pieces are the subwords of the model's vocabulary. The log-probability in JSONL is that of the whole text, its end
    included, whatever it was drawn from.
    """
    require_model_first("generate", model, input)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    decoding: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if greedy and (samples > 1 or decoding):
        useless = ", ".join(f"--{name.replace('_', '-')}" for name in [*decoding, *["samples"] * (samples > 1)])
        raise UserError(f"--greedy draws nothing, so that {useless} would change nothing; leave out the one or the "
                        "other.")
    if prompt and input is not None:
        raise UserError("beginnings come from --prompt or from a file, not both.")
    with _prompts(prompt, input) as lines, writing(file_or_standard(output)) as written:
        translator = load_translator(model, device, precision, threads)
        from seq2seq.recipe.decoding_section import SINGLE_SAMPLE
        from seq2seq.translation import generation

        drawn = {**SINGLE_SAMPLE, **(GREEDY if greedy else decoding)}
        if max_length is not None:
            drawn["max_length"] = max_length
        decoding_with(translator, drawn)
        console.print_message(f"generating in {translator.precision} on {translator.device}")
        with bar("generating", lines, written) as advance:
            def generated(prompts: Iterator[str]) -> Iterator[list[generation.Text]]:
                at_once = 1 if lines.live else generation.BLOCK_PROMPTS
                return generation.generate(translator, prompts, samples, block_prompts=at_once, **drawn)

            for line, texts in through(lines, generated):
                for number, found in enumerate(texts, start=1):
                    if format is TextOrLines.text:
                        written.write(f"{found.text}\n")
                    else:
                        written.write(json_line({
                            "line": line.number, "sample": number, "prompt": line.text, "text": found.text,
                            "log_probability": found.log_probability, "tokens": found.tokens,
                            "prompt_tokens": found.prompt_tokens}) + "\n")
                advance(1)


@contextmanager
def _prompts(given: list[str] | None, path: Path | None) -> Iterator[Input]:
    """The beginnings, as lines: given ones, those of a file, or an empty one."""
    if path is not None:
        with reading(file_or_standard(path)) as lines:
            yield lines
    else:
        yield _Given(given or [""])


class _Given(Input):
    """Beginnings that stand on the command line."""

    def __init__(self, prompts: list[str]) -> None:
        self.prompts, self.name, self.total, self.live = prompts, "--prompt", len(prompts), False

    def __iter__(self) -> Iterator[Line]:
        return (Line(number, text, "\n") for number, text in enumerate(self.prompts, start=1))
