"""`seq2seq translate`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seq2seq import console
from seq2seq.cli.common import bar, decoding_with, json_line, require_model_first
from seq2seq.cli.options import (
    CONSTRAINTS,
    FORMAT,
    MACHINE,
    MODELS,
    SAMPLING,
    SEARCH,
    Compile,
    Device,
    MinP,
    Model,
    Precision,
    PrecisionOption,
    Temperature,
    TextOrLines,
    Threads,
    TopK,
    TopP,
    Workers,
    examples,
)
from seq2seq.compressed_files import MAX_LINE_BYTES
from seq2seq.errors import UserError
from seq2seq.signals import StopRequest, stopping_by_signal
from seq2seq.translation.text_io import (
    Input,
    Line,
    LineWarnings,
    beside,
    blocks_through,
    file_or_standard,
    reading,
    require_as_many_lines,
)
from seq2seq.translation.unfinished_output import Journal, resumable

if TYPE_CHECKING:
    from seq2seq.translation.search_setup import Request
    from seq2seq.translation.translator import Translation, Translator
    from seq2seq.translation.worker_processes import TranslatorPool


class Engine(StrEnum):
    """Engines that can run the model."""

    seq2seq = "seq2seq"
    ctranslate2 = "ctranslate2"


class Mean(StrEnum):
    """Means that an ensemble can take of its models' predictions."""

    probability = "probability"
    log_probability = "log_probability"


# Largest number of lines that a process translates at once; a signal waits until they are done.
BLOCK_LINES = 8192

EXAMPLES = examples("seq2seq translate runs/multi30k_de_en < test.de > test.en",
                    "seq2seq translate model test.de --output test.en --beam-size 1",
                    "seq2seq translate model test.de --n-best 3 --format jsonl",
                    "seq2seq translate model test.de --sampling --top-p 0.9 --n-best 5 --format jsonl",
                    "seq2seq translate model test.de --sampling --mbr 32",
                    "seq2seq translate model test.de --prefix beginnings.en --forbid dog --no-repeat-ngram 3",
                    "seq2seq translate model test.de --require phrases.tsv --beam-size 10",
                    "seq2seq translate model test.de --ensemble model2 --fusion language_model --fusion-weight 0.1",
                    "seq2seq translate model corpus.de.gz --output corpus.en --workers 8",
                    "seq2seq translate model corpus.de.gz --output corpus.en --workers 8 --resume",
                    "seq2seq translate --engine ctranslate2 exported test.de",
                    "seq2seq translate model    (and type)")


def translate(
    model: Model,
    input: Annotated[Path | None, typer.Argument(
        metavar="INPUT", help="A text file, one sentence a line (may end in .gz or .zst); - is standard input.",
        show_default="standard input")] = None,
    max_line_bytes: Annotated[int, typer.Option(
        metavar="N", min=1, help="Refuse an input with a longer line: it lacks line ends, or is a small packed file "
        "that would fill the memory.")] = MAX_LINE_BYTES,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", rich_help_panel=FORMAT, show_default="standard output",
        help="Where the translations go. The file gets its name when it is complete, until then it ends in .part.")] =
        None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Go on with FILE.part, which an earlier run of the same command has left, if there is one.",
        rich_help_panel=FORMAT)] = False,
    format: Annotated[TextOrLines, typer.Option(
        help="A line of text or a JSON object for each line of input.", rich_help_panel=FORMAT)] = TextOrLines.text,
    n_best: Annotated[int, typer.Option(
        metavar="N", min=1, help="Translations of each line; more than one need --format jsonl.",
        rich_help_panel=FORMAT)] = 1,
    word_confidence: Annotated[bool, typer.Option(
        "--word-confidence", help="In JSONL, how sure the model is of each word: the geometric mean of the "
        "probabilities of its pieces.", rich_help_panel=FORMAT)] = False,
    beam_size: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Hypotheses kept for each sentence; 1 is greedy and fastest.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    patience: Annotated[float | None, typer.Option(
        metavar="X", help="Search on until X times the beam's hypotheses have ended, for models that are very sure.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    length_penalty: Annotated[float | None, typer.Option(
        metavar="X", min=0, help="Above the recipe's for longer translations, below for shorter.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    coverage_penalty: Annotated[float | None, typer.Option(
        metavar="X", min=0, help="Above 0 for translations that leave out less.", show_default="the recipe's",
        rich_help_panel=SEARCH)] = None,
    min_length: Annotated[int | None, typer.Option(
        metavar="N", min=0, help="Pieces of the shortest translation.", show_default="the recipe's",
        rich_help_panel=SEARCH)] = None,
    max_length: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Pieces of the longest translation.", show_default="the recipe's",
        rich_help_panel=SEARCH)] = None,
    diverse_groups: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Groups of the beam that avoid each other's words: an --n-best that differs more.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    diverse_strength: Annotated[float | None, typer.Option(
        metavar="X", min=0, help="How much they avoid them.", show_default="the recipe's",
        rich_help_panel=SEARCH)] = None,
    mbr: Annotated[int | None, typer.Option(
        metavar="N", min=0, help="Of N candidates, samples or the best of the beam, the one most like all of them by "
        "chrF.", show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    safety_net: Annotated[bool | None, typer.Option(
        help="Look for loops, empty translations, impossible lengths, copies, lost numbers and addresses; search such "
        "lines again in another way, and name those that are left.", show_default="the recipe's",
        rich_help_panel=SEARCH)] = None,
    prefix: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Text that each translation begins with, line by line; nothing where a line is empty.",
        show_default=False, rich_help_panel=CONSTRAINTS)] = None,
    require: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Words or phrases that each translation holds as whole words, line by line, tabs between "
        "them.", show_default=False, rich_help_panel=CONSTRAINTS)] = None,
    forbid: Annotated[list[str] | None, typer.Option(
        metavar="TEXT", help="A word or phrase that no translation holds as whole words. May be given again.",
        show_default="the recipe's", rich_help_panel=CONSTRAINTS)] = None,
    ignore_case: Annotated[bool | None, typer.Option(
        help="--require and --forbid mean their phrases in any casing.", show_default="the recipe's",
        rich_help_panel=CONSTRAINTS)] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(
        metavar="N", min=0, help="No N pieces in a row twice in a translation.", show_default="the recipe's",
        rich_help_panel=CONSTRAINTS)] = None,
    sampling: Annotated[bool | None, typer.Option(
        help="Draw translations instead of searching; --n-best of each line.", show_default="the recipe's",
        rich_help_panel=SAMPLING)] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    seed: Annotated[int | None, typer.Option(
        metavar="N", min=0, help="Decides the samples, with the number of the line.", show_default="the recipe's",
        rich_help_panel=SAMPLING)] = None,
    ensemble: Annotated[list[Path] | None, typer.Option(
        metavar="MODEL", help="A model of the same vocabulary that translates together with the first. May be given "
        "again.", show_default=False, rich_help_panel=MODELS)] = None,
    ensemble_mean: Annotated[Mean | None, typer.Option(
        metavar="MEAN", help="What is averaged over the models: probability or log_probability.",
        show_default="the recipe's", rich_help_panel=MODELS)] = None,
    fusion: Annotated[Path | None, typer.Option(
        metavar="LM", help="A language model of the same vocabulary that has a say.", show_default=False,
        rich_help_panel=MODELS)] = None,
    fusion_weight: Annotated[float | None, typer.Option(
        metavar="X", min=0, help="How much: the weight of its log-probability.", show_default="the recipe's",
        rich_help_panel=MODELS)] = None,
    device: Device = "auto",
    precision: PrecisionOption = Precision.auto,
    threads: Threads = None,
    workers: Workers = 1,
    compile: Compile = False,
    engine: Annotated[Engine, typer.Option(
        help="What runs the model; ctranslate2 wants a directory that seq2seq export made.", rich_help_panel=MACHINE)] =
        Engine.seq2seq,
) -> None:
    """Translate text: one line out for each line in, always.

    Lengths are counted in pieces, the subwords of the model's vocabulary. A line ends at a newline alone. Empty
    lines come back as they are; a line too long for the model is translated in parts, which are joined. With
    --output, SIGINT and SIGTERM (Ctrl-C) let the block of lines that is begun be finished; --resume goes on from
    there, or from the last block before a crash.
    """
    options: dict[str, Any] = {
        "n_best": n_best, "beam_size": beam_size, "patience": patience,
        "length_penalty": length_penalty, "coverage_penalty": coverage_penalty, "min_length": min_length,
        "max_length": max_length, "diverse_groups": diverse_groups, "diverse_strength": diverse_strength, "mbr": mbr,
        "safety_net": safety_net, "forbid": tuple(forbid) if forbid else None, "ignore_case": ignore_case,
        "no_repeat_ngram": no_repeat_ngram, "sampling": sampling,
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed,
        "ensemble_mean": ensemble_mean and ensemble_mean.value, "fusion_weight": fusion_weight,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if word_confidence or format is TextOrLines.text:                           # where nobody would see it
        given["word_confidence"] = word_confidence
    require_model_first("translate", model, input)
    _refuse_as_text(format, n_best, word_confidence)
    if compile:
        raise UserError("--compile is now part of int8: use --precision int8 instead.")
    if ensemble_mean and not ensemble:
        raise UserError("--ensemble-mean is for several models. Name another by --ensemble MODEL.")
    if fusion_weight is not None and fusion is None:
        raise UserError("--fusion-weight is that of a language model. Name one by --fusion LM.")
    with ExitStack() as stack:
        lines = stack.enter_context(reading(file_or_standard(input), max_line_bytes))
        journal = stack.enter_context(resumable(file_or_standard(output), resume))
        prefixes, phrases = (None if path is None else stack.enter_context(reading(path, max_line_bytes))
                             for path in (prefix, require))
        for other in (prefixes, phrases):
            if other is not None:
                require_as_many_lines(lines, other)
        translator = stack.enter_context(
            _translators(engine, model, device, precision, threads, workers,
                         {"ensemble": ensemble or (), "fusion": fusion}))
        decoding = _decoding(translator, given, require is not None)
        journal.begin({
            **_decisive(translator, [model, *(ensemble or ()), *([fusion] if fusion else ())], decoding),
            "format": format.value, "threads": threads, "workers": workers})
        if lines.live:
            console.print_message("Type a line and press Enter; Ctrl-D ends.")
        stop = stack.enter_context(_stopping(journal))
        asked = journal.behind(stop.interruptible(_requests(lines, prefixes, phrases)), lines.name)
        stop.message = _how_to_go_on(journal)
        used = decoding_with(translator, decoding)
        notes, judged, words = _Notes(lines.name), used.safety_net, used.word_confidence
        with bar("translating", lines, journal.output, journal.lines) as advance:
            def translated(asked: Iterator[tuple[Line, Request]]) -> Iterator[list[list[Translation]]]:
                together = 1 if lines.live else BLOCK_LINES * workers
                return translator.translate_blocks((request for _, request in asked), together, begin=journal.lines,
                                                   progress=advance, **decoding)

            for block in blocks_through(asked, translated):
                for (line, _), found in block:
                    if format is TextOrLines.text:
                        journal.output.write(found[0].text + line.ending)
                    else:
                        record = _translation_record(line, found, n_best, words, judged)
                        journal.output.write(json_line(record) + line.ending[-1:])
                    notes.look_at(line, found[0])
                journal.commit()
                stop.message = _how_to_go_on(journal)
                stop.raise_if_requested()
        notes.finish()


class _Notes:
    """Notes about lines on standard error: the first ones of each kind are shown, the others counted."""

    def __init__(self, name: str) -> None:
        """name: of the input."""
        self.long = LineWarnings(name, "lines are too long for the model; they were translated in parts, too")
        self.faulty = LineWarnings(name, "translations have faults; in --format jsonl each says which")
        self.retried = 0

    def look_at(self, line: Line, best: Translation) -> None:
        """Show or count the notes about a line."""
        if best.parts > 1:
            self.long.warn(line.number, f"too long for the model; translated in {best.parts:,} parts, which are joined")
        if best.faults:
            self.faulty.warn(line.number, ", ".join(best.faults))
        self.retried += best.retried

    def finish(self) -> None:
        """Show the counts."""
        self.long.finish()
        self.faulty.finish()
        if self.retried:
            console.print_message(f"translations that a retry has improved: {self.retried:,}")


@contextmanager
def _stopping(journal: Journal) -> Iterator[StopRequest]:
    """Stop by signal between two blocks if the output can be resumed; otherwise at once."""
    if journal.output.part is None:
        yield StopRequest()
        return
    with stopping_by_signal("this block of lines", _how_to_go_on(journal)) as stop:
        yield stop


def _how_to_go_on(journal: Journal) -> str:
    command = [Path(sys.argv[0]).name.replace("__main__.py", "seq2seq"), *sys.argv[1:]]
    if "--resume" not in command:
        command.append("--resume")
    return f"{journal.lines:,} lines are done. To go on:\n  {shlex.join(command)}"


def _decisive(translator: Translator | TranslatorPool, models: Sequence[Path], decoding: dict[str, Any],
              ) -> dict[str, Any]:
    """Return everything but the text that a translation depends on, by name."""
    from seq2seq import __version__

    options = decoding_with(translator, decoding)
    return {"version": __version__, "precision": translator.precision, "device": str(translator.device),
            "models": [_identity(path) for path in models],
            **{f"decoding.{name}": value for name, value in options.model_dump(mode="json").items()}}


def _identity(model: Path) -> dict[str, Any]:
    """Identify a model by its checksums, or an exported one by sizes and modification times of its files."""
    from seq2seq.storage.checkpoints import resolve_model_path
    from seq2seq.storage.directories import kind_of, read_metadata

    if kind_of(model) is None and not (model / "best").is_dir():
        return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(model.iterdir())}
    return dict(read_metadata(resolve_model_path(model), "bundle", ())["sha256"])


@contextmanager
def _translators(engine: Engine, model: Path, device: str, precision: Precision, threads: int | None, workers: int,
                 models: dict[str, Any]) -> Iterator[Translator | TranslatorPool]:
    """Yield a translator or a pool of them, and print its precision. models: paths of ensemble and fusion models."""
    if engine is Engine.ctranslate2:
        from seq2seq.interop.ctranslate2 import CTranslate2Translator

        if given := [f"--{name}" for name, value in models.items() if value]:
            raise UserError(f"--engine ctranslate2 runs one model as it is. Leave out {' and '.join(given)}, or it.")
        exported = CTranslate2Translator.open(model, device, precision.value, threads, workers)
        console.print_message(f"translating with CTranslate2 in {exported.precision} on {exported.device}")
        yield exported
        return
    if workers == 1:
        from seq2seq.translation.translator import Translator

        translator = Translator.load(model, device, precision.value, threads, **models)
        console.print_message(f"translating in {translator.precision} on {translator.device}")
        yield translator
        return
    from seq2seq.translation.worker_processes import TranslatorPool

    with TranslatorPool(model, workers, device, precision.value, threads or 1, **models) as pool:
        console.print_message(f"translating in {pool.precision}, {workers} workers")
        yield pool


def _requests(lines: Input, prefixes: Input | None, phrases: Input | None) -> Iterator[tuple[Line, Request]]:
    """Yield each line with its request, which has the prefix and the phrases from the other files."""
    from seq2seq.translation.search_setup import Request

    for (line, prefix), required in beside(beside(iter(lines), lines.name, prefixes), lines.name, phrases):
        yield line, Request(line.text, prefix, tuple(phrase for phrase in required.split("\t") if phrase.strip()))


def _refuse_as_text(format: TextOrLines, n_best: int, words: bool) -> None:
    """Raise UserError for output that does not fit into one line of text per line of input."""
    if format is TextOrLines.text and n_best > 1:
        raise UserError("--n-best gives several translations of a line, but text has one line for each line of input. "
                        "Add --format jsonl.")
    if format is TextOrLines.text and words:
        raise UserError("--word-confidence gives numbers, but text has none. Add --format jsonl.")


def _decoding(translator: Translator | TranslatorPool, given: dict[str, Any], requiring: bool) -> dict[str, Any]:
    """Check the overrides of the recipe's `decoding` section and return them. requiring: lines have required phrases.

    Raises:
        UserError: options that contradict each other.
    """
    from seq2seq.recipe.decoding_section import SAMPLING_KEYS, DecodingSection

    sampling = given.get("sampling", translator.decoding.sampling)
    beam, n_best = given.get("beam_size", translator.decoding.beam_size), given["n_best"]
    if not sampling and not given.get("mbr", translator.decoding.mbr) and n_best > beam:
        raise UserError(f"a beam of {beam} cannot give {n_best} translations. Add --beam-size {n_best}.")
    if sampling and "beam_size" in given:
        raise UserError("--beam-size is for searching, and sampling draws. Leave out one of both; --n-best says how "
                        "many samples there are.")
    if not sampling and given.get("mbr", 0) > beam:
        raise UserError(f"--mbr {given['mbr']}: a beam of {beam} cannot give {given['mbr']} candidates. Add "
                        f"--sampling, or --beam-size {given['mbr']}.")
    off = {name: DecodingSection.model_fields[name].default for name in SAMPLING_KEYS}
    if not sampling and (vain := [name for name in (*off, "seed") if given.get(name) not in (None, off.get(name))]):
        raise UserError(f"--{vain[0].replace('_', '-')} is for samples, and a search has none. Add --sampling, or "
                        "leave it out.")
    options = decoding_with(translator, given)
    if "diverse_strength" in given and options.diverse_groups == 1:
        raise UserError("--diverse-strength is that of groups. Add --diverse-groups N.")
    if "ignore_case" in given and not (requiring or options.require or options.forbid):
        raise UserError("--ignore-case is for phrases. Add --require FILE or --forbid TEXT.")
    if requiring and (sampling or options.diverse_groups > 1):
        raise UserError("--require shares out the beam of a search; it goes neither with sampling nor with diverse "
                        "groups. Leave out one of both.")
    return given


def _translation_record(line: Line, found: Sequence[Translation], n_best: int, words: bool, judged: bool,
                        ) -> dict[str, Any]:
    best = found[0]
    record = {"line": line.number, "source": line.text, "translation": best.text, "score": best.score,
              "log_probability": best.log_probability, "tokens": best.tokens, "parts": best.parts}
    if judged:
        record |= {"faults": list(best.faults), "retried": best.retried}
    if words:
        record["words"] = _words(best)
    if n_best > 1:
        record["n_best"] = [{"translation": one.text, "score": one.score, "log_probability": one.log_probability,
                             "tokens": one.tokens, **({"words": _words(one)} if words else {})} for one in found]
    return record


def _words(translation: Translation) -> list[dict[str, Any]]:
    return [{"word": word.text, "confidence": word.confidence} for word in translation.words]
