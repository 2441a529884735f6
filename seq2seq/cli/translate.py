"""`seq2seq translate`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seq2seq import console
from seq2seq.cli.common import DecodingOverrides, bar, json_line, require_model_first
from seq2seq.cli.options import (
    CONSTRAINTS,
    FORMAT,
    MACHINE,
    MODELS,
    SAMPLING,
    SEARCH,
    DecodingSettings,
    Device,
    Model,
    Precision,
    PrecisionOption,
    TargetLanguage,
    Temperature,
    TextOrLines,
    Threads,
    TopP,
    Workers,
    examples,
)
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.errors import UserError
from seq2seq.files.compressed_files import MAX_LINE_BYTES
from seq2seq.signals import StopRequest, stopping_by_signal
from seq2seq.translation.text_io import Line, file_or_standard, map_in_blocks, reading
from seq2seq.translation.unfinished_output import Journal, how_to_resume, resumable

if TYPE_CHECKING:
    from seq2seq.recipe import DecodingSection
    from seq2seq.translation.line_translator import LineTranslator, Translation
    from seq2seq.translation.requests import Request
    from seq2seq.translation.worker_processes import Rank, TranslatorPool


class Engine(StrEnum):
    """Inference engines."""

    seq2seq = "seq2seq"
    ctranslate2 = "ctranslate2"


TORCHRUN_STOP_SECONDS = 15
"""Under `torchrun`, maximum time from a stop signal to the end of the command. `torchrun` kills it after 30 seconds."""
BLOCK_LINES = 8192
"""Maximum number of lines per worker in a block. After a stop signal, the command finishes the block and ends."""

EXAMPLES = examples("seq2seq translate runs/multi30k_de_en < test.de > test.en",
                    "seq2seq translate model test.de --output test.en --beam-size 1",
                    "seq2seq translate model test.de --n-best 3 --format jsonl",
                    "seq2seq translate model test.de --sampling --top-p 0.9 --n-best 5 --format jsonl",
                    "seq2seq translate model test.de --prefix beginnings.en --forbid dog",
                    "seq2seq translate model test.de --require phrases.tsv --beam-size 10",
                    "seq2seq translate model test.de --ensemble model2 --fusion language_model --fusion-weight 0.1",
                    "seq2seq translate model test.de --target-language fr --output test.fr",
                    "seq2seq translate model corpus.de.gz --output corpus.en --workers 8 --resume",
                    "seq2seq translate model page.html --output page.en.html --glossary terms.tsv",
                    "torchrun --nproc-per-node 8 -m seq2seq translate model corpus.de --output corpus.en --resume",
                    "seq2seq translate --engine ctranslate2 exported test.de",
                    "seq2seq translate model    (then type sentences)")


def translate(
    context: typer.Context,
    model: Model,
    input: Annotated[Path | None, typer.Argument(
        metavar="INPUT", help="Text, one sentence per line, plain or compressed (.gz, .zst), or a document whose name "
        "tells its format (see --document); - is standard input.",
        show_default="standard input")] = None,
    document: Annotated[str | None, typer.Option(
        metavar="FORMAT", show_default="by the ending of INPUT's name", help="Format of a document: html, markdown, "
        "srt, vtt, ass, po, xliff, ts, properties, android, json, docx, pptx, odt, tmx or text (paragraphs). Only the "
        "text of the document is translated. lines: INPUT has one sentence per line, whatever its name.")] = None,
    target_language: TargetLanguage = None,
    max_line_bytes: Annotated[int, typer.Option(
        metavar="N", min=1, help="Maximum length of a line in bytes; a longer line is an error.")] = MAX_LINE_BYTES,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", rich_help_panel=FORMAT, show_default="standard output",
        help="Output file. Until the output is complete, the name of the file ends in .part.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue FILE.part, if an interrupted call of the same command has left this file.",
        rich_help_panel=FORMAT)] = False,
    format: Annotated[TextOrLines, typer.Option(
        help="text: a line of text for each line of input. jsonl: a JSON object for each line of input.",
        rich_help_panel=FORMAT)] = TextOrLines.text,
    n_best: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Number of translations of each line. If N is above 1, --format jsonl is required.",
        show_default="1", rich_help_panel=FORMAT)] = None,
    word_confidence: Annotated[bool, typer.Option(
        "--word-confidence", help="Add the model's confidence in each word to the JSONL: the geometric mean of the "
        "probabilities of the word's pieces (subwords).", rich_help_panel=FORMAT)] = False,
    beam_size: Annotated[int | None, typer.Option(
        metavar="N", min=1, help="Number of hypotheses kept for each sentence; 1 is greedy search, the fastest.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    length_penalty: Annotated[float | None, typer.Option(
        metavar="X", min=0, help="Exponent of the length penalty, a divisor of the log-probability. A larger exponent "
        "prefers longer translations.",
        show_default="the recipe's", rich_help_panel=SEARCH)] = None,
    safety_net: Annotated[bool | None, typer.Option(
        help="Check translations for loops, impossible lengths, copied source text, and lost numbers or addresses. "
        "Retry faulty lines with other options, and report the faults that remain.", show_default="the recipe's",
        rich_help_panel=SEARCH)] = None,
    settings: DecodingSettings = None,
    prefix: Annotated[Path | None, typer.Option(
        metavar="FILE", help="File with the required beginning of each translation, line by line. An empty line "
        "requires no beginning.",
        show_default=False, rich_help_panel=CONSTRAINTS)] = None,
    require: Annotated[Path | None, typer.Option(
        metavar="FILE", help="File with a line for each input line: the words or phrases that its translation must "
        "contain, separated by tabs.", show_default=False, rich_help_panel=CONSTRAINTS)] = None,
    forbid: Annotated[list[str] | None, typer.Option(
        metavar="TEXT", help="Word or phrase that no translation may contain. Can be repeated.",
        show_default="the recipe's", rich_help_panel=CONSTRAINTS)] = None,
    glossary: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Table of terms and their translations, separated by tabs; a third column may say 'do not "
        "translate'. If a translation lacks terms, a second search requires them. Terms still missing are reported.",
        show_default=False, rich_help_panel=CONSTRAINTS)] = None,
    placeholder: Annotated[list[str] | None, typer.Option(
        metavar="REGEX", help="Further text to keep unchanged. Variables such as %s, addresses, paths, emoji and so on "
        "are kept, too. Can be repeated.", show_default=False, rich_help_panel=CONSTRAINTS)] = None,
    sampling: Annotated[bool | None, typer.Option(
        help="Sample translations instead of searching; --n-best is the number of samples per line.",
        show_default="the recipe's", rich_help_panel=SAMPLING)] = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Annotated[int | None, typer.Option(
        metavar="N", min=0, help="Seed of the samples. A sample depends on the seed and on the number of its line.",
        show_default="the recipe's", rich_help_panel=SAMPLING)] = None,
    ensemble: Annotated[list[Path] | None, typer.Option(
        metavar="MODEL", help="Another model with the same vocabulary, to form an ensemble. Can be repeated.",
        show_default=False, rich_help_panel=MODELS)] = None,
    fusion: Annotated[Path | None, typer.Option(
        metavar="LM", help="Language model for shallow fusion. It must have the target vocabulary of MODEL.",
        show_default=False, rich_help_panel=MODELS)] = None,
    fusion_weight: Annotated[float | None, typer.Option(
        metavar="X", min=0, help="Weight of the language model's log-probability.", show_default="the recipe's",
        rich_help_panel=MODELS)] = None,
    device: Device = "auto",
    precision: PrecisionOption = Precision.auto,
    threads: Threads = None,
    workers: Workers = 1,
    engine: Annotated[Engine, typer.Option(
        help="Inference engine; ctranslate2 needs a directory that seq2seq export has written.",
        rich_help_panel=MACHINE)] = Engine.seq2seq,
) -> None:
    """Translate text. Each line of input yields exactly one line of output.

    Only a newline character ends a line. Empty lines stay empty. A line that is too long for the model is translated in
    parts, which are joined. With --output, the command finishes the current block of lines after SIGINT (Ctrl-C) or
    SIGTERM and then stops. --resume continues after the last finished block, also after a crash. If torchrun
    starts several processes, on one machine or several, they share the lines. Only the first process reads the input
    and writes the output.
    """
    ranks = None if context.obj is None else context.obj.members
    overrides = DecodingOverrides.read(
        settings, n_best=n_best, beam_size=beam_size, length_penalty=length_penalty, safety_net=safety_net,
        word_confidence=word_confidence or None, forbid=tuple(forbid) if forbid else None, sampling=sampling,
        temperature=temperature, top_p=top_p, seed=seed, fusion_weight=fusion_weight)
    require_model_first("translate", model, input)
    if format is TextOrLines.text:
        _require_text_output(overrides)
        overrides = overrides.with_defaults(word_confidence=False)              # even if the recipe sets it
    overrides = overrides.with_defaults(n_best=1)
    if not ensemble:
        overrides.refuse_without_effect("ensemble_mean", "there is only one model. Add --ensemble MODEL.")
    if fusion is None:
        overrides.refuse_without_effect("fusion_weight", "there is no language model. Add --fusion LM.")
    from seq2seq.formats.translate_document import (
        DocumentTranslation,
        input_format,
        model_recipe,
        protected,
        read_document,
    )
    from seq2seq.protection.translation_warnings import TranslationWarnings
    from seq2seq.translation.journal_inputs import journal_inputs
    from seq2seq.translation.requests import requests_of

    path = file_or_standard(input)
    document = input_format(path, document)
    if document and (format is TextOrLines.jsonl or prefix or require):
        raise UserError("--format jsonl, --prefix and --require are for lines of text, not for documents. Remove them, "
                        f"or translate the lines of {path} as they are with --document lines.")
    with ExitStack() as stack:
        contents = read_document(path) if document else b""
        opened = [] if document else [stack.enter_context(reading(path, max_line_bytes))]
        journal = stack.enter_context(resumable(file_or_standard(output), resume))
        prefixes, phrases = (None if path is None else stack.enter_context(reading(path, max_line_bytes))
                             for path in (prefix, require))
        inputs = [*opened, *(text for text in (prefixes, phrases) if text is not None)]
        require_as_many_lines([text.name for text in inputs], *(text.total for text in inputs))
        recipe = model_recipe(model, target_language)
        parsed = DocumentTranslation(contents, document, str(path or "standard input"), recipe) if document else None
        lines = parsed.lines if parsed else opened[0]
        # `_stopping` is entered before `_translators` and left after it, to handle signals while the workers end:
        # `torchrun` sends a signal when a rank is lost.
        stop = stack.enter_context(_stopping(journal, ranks is not None))
        translator = stack.enter_context(
            _translators(engine, model, device, precision, threads, workers, ranks,
                         {"ensemble": ensemble or (), "fusion": fusion, "target_language": target_language}))
        decoding = _checked_decoding(translator, overrides, require is not None)
        journal.begin({
            **journal_inputs(translator, [model, *(ensemble or ()), *([fusion] if fusion else ())], decoding),
            "format": format.value, "threads": threads, "workers": workers, "document": document,
            "glossary": glossary and hashlib.sha256(read_document(glossary)).hexdigest(), "placeholder": placeholder,
            "target_language": target_language})
        safe = protected(translator, model, recipe, glossary, placeholder or ())
        keep = parsed or glossary or placeholder or decoding.safety_net and recipe.task.target_is_text
        if lines.live:
            console.print_message("Type a line and press Enter; Ctrl-D ends the input.")
        requests = journal.skip_finished(stop.interruptible(
            requests_of(lines, prefixes, phrases, translator.context)), lines.name)
        stop.message = how_to_resume(journal)
        finished = journal.finished_lines() if parsed else []
        warnings = TranslationWarnings(lines.name, parsed.places if parsed else None, recipe.language_tokens)
        with bar("translating", lines, journal.output, journal.lines) as advance:
            def translated(requests: Iterator[tuple[Line, Request]]) -> Iterator[list[list[Translation]]]:
                block_lines = 1 if lines.live else BLOCK_LINES * workers
                return (safe if keep else translator).translate_blocks(
                    (request for _, request in requests), block_lines, begin=journal.lines, progress=advance,
                    **overrides.values)

            for block in map_in_blocks(requests, translated):
                for (line, _), translations in block:
                    if parsed:
                        finished.append(translations[0].text)
                        if journal.output.part:
                            journal.output.write(f"{finished[-1]}\n")
                    elif format is TextOrLines.text:
                        journal.output.write(translations[0].text + line.ending)
                    else:
                        record = _translation_record(line, translations, decoding)
                        journal.output.write(json_line(record) + line.ending[-1:])
                    warnings.check(line, translations[0])
                journal.commit()
                stop.message = how_to_resume(journal)
                stop.raise_if_requested()
        if parsed:
            journal.output.replace(parsed.join(finished, safe.align))
        warnings.finish()


@contextmanager
def _stopping(journal: Journal, torchrun: bool) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a stop request, and yield the request. If the output cannot be resumed, or the model
    is still being loaded, the signals end the command immediately. torchrun: True if `torchrun` started this process.
    """
    if journal.output.part is None:
        yield StopRequest()
        return
    with stopping_by_signal("this block of lines", "stopped while the model was loaded", not torchrun,
                            TORCHRUN_STOP_SECONDS if torchrun else 0) as stop:
        stop.waiting = True
        yield stop


@contextmanager
def _translators(engine: Engine, model: Path, device: str, precision: Precision, threads: int | None, workers: int,
                 ranks: Sequence[Rank] | None, models: dict[str, Any]) -> Iterator[LineTranslator | TranslatorPool]:
    """Yield a translator or a pool of translators, and print the precision.

    ranks: other ranks of `torchrun`; None: without `torchrun`. models: arguments `ensemble`, `fusion` and
    `target_language` of `Translator.load`.
    """
    if ranks is not None and workers > 1:
        raise UserError("--workers has no effect with torchrun, whose processes are the workers. Remove it; "
                        "--nproc-per-node of torchrun is the number of processes on a machine.")
    if ranks is not None and engine is Engine.ctranslate2:
        raise UserError("--engine ctranslate2 does not work with torchrun. Use --workers without torchrun, or the "
                        "engine seq2seq.")
    if engine is Engine.ctranslate2:
        from seq2seq.interop.ctranslate2 import CTranslate2Translator

        if given := [f"--{name.replace('_', '-')}" for name, value in models.items() if value]:
            raise UserError(f"--engine ctranslate2 runs one model as it is. Remove {' and '.join(given)}, or --engine.")
        exported = CTranslate2Translator.open(model, device, precision.value, threads, workers)
        console.print_message(f"translating with CTranslate2 in {exported.precision} on {exported.device}")
        yield exported
        return
    if workers == 1 and ranks is None:
        from seq2seq.translation.translator import Translator

        translator = Translator.load(model, device, precision.value, threads, **models)
        console.print_message(f"translating in {translator.precision} on {translator.device}")
        yield translator
        return
    from seq2seq.translation.worker_processes import TranslatorPool

    with TranslatorPool(model, workers, device, precision.value, threads if ranks else threads or 1,
                        ranks=ranks or (), **models) as pool:
        console.print_message(f"translating in {pool.precision}, {pool.workers} workers")
        yield pool


def _require_text_output(overrides: DecodingOverrides) -> None:
    """Raise UserError if an override asks for several translations per line or for word confidence, which --format text
    cannot show."""
    n_best = overrides.values.get("n_best")
    if isinstance(n_best, int) and n_best > 1:
        raise UserError(f"{overrides.name('n_best')} gives several translations of a line, but --format text has "
                        "only one. Add --format jsonl.")
    if overrides.values.get("word_confidence"):
        raise UserError(f"{overrides.name('word_confidence')} adds numbers to the output, but --format text has only "
                        "translations. Add --format jsonl.")


def _checked_decoding(translator: LineTranslator | TranslatorPool, overrides: DecodingOverrides, requiring: bool,
                      ) -> DecodingSection:
    """Return the `decoding` section of the model's recipe with the overrides applied.

    requiring: True if the lines have required phrases (`--require`).

    Raises:
        UserError: a value is invalid, options contradict each other, or an option has no effect.
    """
    decoding = overrides.section(translator)
    if decoding.sampling:
        overrides.refuse_without_effect("beam_size", "sampling has no beam; --n-best is the number of samples.")
    else:
        overrides.refuse_without_effect("seed", "beam search draws nothing at random. Add --sampling.")
    if decoding.diverse_groups == 1:
        overrides.refuse_without_effect("diverse_strength", "the beam has only one group. Add --set "
                                        "decoding.diverse_groups=N.")
    if not (requiring or decoding.require or decoding.forbid):
        overrides.refuse_without_effect("ignore_case", "no phrases are given. Add --require FILE or --forbid TEXT.")
    if requiring and (decoding.sampling or decoding.diverse_groups > 1):
        raise UserError("--require works only with beam search in a single group. Remove either --require, or both "
                        "--sampling and decoding.diverse_groups.")
    return decoding


def _translation_record(line: Line, n_best: Sequence[Translation], decoding: DecodingSection) -> dict[str, Any]:
    best, with_words = n_best[0], decoding.word_confidence
    record = {"line": line.number, "source": line.text, "translation": best.text, "score": best.score,
              "log_probability": best.log_probability, "tokens": best.tokens, "parts": best.parts}
    if best.lost_terms:
        record["lost_terms"] = list(best.lost_terms)
    if decoding.safety_net:
        record |= {"faults": list(best.faults), "retried": best.retried}
    record |= {"words": _words(best)} if with_words else {}
    if decoding.n_best > 1:
        record["n_best"] = [{"translation": one.text, "score": one.score, "log_probability": one.log_probability,
                             "tokens": one.tokens, **({"faults": list(one.faults)} if decoding.safety_net else {}),
                             **({"words": _words(one)} if with_words else {})} for one in n_best]
    return record


def _words(translation: Translation) -> list[dict[str, Any]]:
    return [{"word": word.text, "confidence": word.confidence} for word in translation.words]
