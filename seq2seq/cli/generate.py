"""`seq2seq generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import bar, json_line, load_translator
from seq2seq.cli.decoding_options import NO_OVERRIDES, Decoding, option_of
from seq2seq.errors import UserError
from seq2seq.translation.text_io import GivenLines, Input, LineWarnings, file_or_standard, map_lines, reading, writing

EXAMPLES = ("seq2seq generate language_model --samples 5",
            'seq2seq generate language_model --prompt "A man" --samples 3 --top-p 0.9 --seed 7',
            "seq2seq generate language_model beginnings.en --greedy --format jsonl",
            "seq2seq generate language_model - < beginnings.en")

# Values of `decoding` keys for --greedy. With top_k 1, sampling can draw only the most probable piece.
GREEDY = {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0}


def generate(
    model: Annotated[Path, typer.Argument(
        metavar="MODEL", help="A language model: a bundle, or a run (its best model).", show_default=False)],
    input: Annotated[Path | None, typer.Argument(
        metavar="INPUT", help="Text, one prompt per line, plain or compressed (.gz, .zst); - is standard input.",
        show_default="an empty prompt")] = None,
    prompt: Annotated[list[str] | None, typer.Option(
        metavar="TEXT", help="Beginning of the text. Can be repeated.", show_default=False)] = None,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Number of texts for each prompt.")] = 1,
    greedy: Annotated[bool, typer.Option(
        "--greedy", help="Always take the most probable piece instead of sampling.",
        rich_help_panel=options.SAMPLING)] = False,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", help="Output file.", rich_help_panel=options.FORMAT,
        show_default="standard output")] = None,
    format: Annotated[options.TextOrLines, typer.Option(
        help="text: a line for each generated text. jsonl: a JSON object for each generated text.",
        rich_help_panel=options.FORMAT)] = options.TextOrLines.text,
    decoding: Decoding = NO_OVERRIDES,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.reference,
    threads: options.Threads = None,
) -> None:
    """Generate text with a language model: continue prompts, or start new texts.

    Unless the maximum length is set, a text has at most 100 pieces (subwords of the model's vocabulary), including its
    prompt. In JSONL, log_probability is the log-probability of the whole text, including its prompt and its end. It is
    computed from the model's distribution before temperature, top-p and similar options change this distribution.
    """
    useless = [option_of(key) for key in decoding.given if key in (*GREEDY, "seed", "sampling")]
    if greedy and (useless := [*useless, *["--samples"] * (samples > 1)]):
        raise UserError(f"--greedy takes the most probable piece each time; {', '.join(useless)} would change "
                        "nothing. Remove --greedy or the other options.")
    if prompt and input is not None:
        raise UserError("both --prompt and a file of prompts were given. Remove one of them.")
    with _prompts(prompt, input) as lines, writing(file_or_standard(output), [input]) as written:
        translator = load_translator(model, device, precision, threads)
        from seq2seq.translation import generation

        overrides = decoding.with_values(GREEDY if greedy else {})
        requested = samples * overrides.section(translator).n_best              # raises UserError for a wrong option
        few = LineWarnings(lines.name, "prompts have fewer different texts than requested")
        console.print_message(f"generating in {translator.precision} on {translator.device}")
        with bar("generating", lines, written) as advance:
            def generated(prompts: Iterator[str]) -> Iterator[list[generation.Text]]:
                block_prompts = 1 if lines.live else generation.BLOCK_PROMPTS
                return generation.generate(translator, prompts, samples, block_prompts=block_prompts,
                                           **overrides.values)

            for line, texts in map_lines(lines, generated):
                if len(texts) < requested:
                    few.warn(line.place, f"{len(texts):,} of {requested:,} different texts were found")
                for number, text in enumerate(texts, start=1):
                    if format is options.TextOrLines.text:
                        written.write(f"{text.text}\n")
                    else:
                        written.write(json_line({
                            "line": line.number, "sample": number, "prompt": line.text, "text": text.text,
                            "log_probability": text.log_probability, "tokens": text.tokens,
                            "prompt_tokens": text.prompt_tokens}) + "\n")
                advance(1)
        few.finish()


@contextmanager
def _prompts(given: list[str] | None, path: Path | None) -> Iterator[Input]:
    """Yield an input with the prompts of the command line, the lines of a file, or one empty prompt."""
    if path is not None:
        with reading(file_or_standard(path)) as lines:
            yield lines
    else:
        yield GivenLines(given or [""], "--prompt")
