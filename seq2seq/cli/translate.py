"""`seq2seq translate`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import seq2seq.cli.options as options
from seq2seq import __version__, console
from seq2seq.cli.common import bar, json_line, precision_hint
from seq2seq.cli.decoding_options import NO_OVERRIDES, Decoding, DecodingOverrides
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.errors import UserError
from seq2seq.files import (
    BLOCK_BYTES,
    COMPRESSED_SUFFIXES,
    MAX_LINE_BYTES,
    is_binary,
    open_regular,
    sha256_of,
)
from seq2seq.formats.block import MAX_BYTES, naming, wide_encoding
from seq2seq.formats.registry import (
    FORMATS,
    SUFFIXES,
    format_of,
    names_lines,
    root_element,
    structure_of,
)
from seq2seq.signals import StopRequest, stopping_by_signal
from seq2seq.translation.text_io import (
    MAX_WARNINGS,
    GivenLines,
    Input,
    Line,
    LineWarnings,
    UnseenCharacters,
    file_or_standard,
    reading,
    writing,
)
from seq2seq.translation.unfinished_output import UnfinishedOutput, how_to_resume, resumable

if TYPE_CHECKING:
    from seq2seq.recipe import DecodingSection
    from seq2seq.tokenizers.language_token import Directions
    from seq2seq.tokenizers.source import Source
    from seq2seq.translation.translation import Translation
    from seq2seq.translation.translator import Translator
    from seq2seq.translation.worker_processes import TranslatorPool

TORCHRUN_STOP_SECONDS = 15
"""Under `torchrun`, maximum time from a stop signal to the end of the command. `torchrun` kills it after 30 seconds."""
BLOCK_LINES = 8192
"""Maximum number of lines per worker in a block. After a stop signal, the command finishes the block and ends."""

EXAMPLES = ("seq2seq translate runs/multi30k_de_en < test.de > test.en",
            "seq2seq translate model test.de --output test.en --beam-size 1",
            "seq2seq translate model test.de --n-best 3 --format jsonl",
            "seq2seq translate model test.de --sampling --top-p 0.9 --n-best 5 --format jsonl",
            "seq2seq translate model test.de --prefix-file beginnings.en --forbid dog",
            "seq2seq translate model test.de --require-file phrases.tsv --beam-size 10",
            "seq2seq translate model test.de --ensemble model2 --fusion language_model --fusion-weight 0.1",
            "seq2seq translate model test.de --target-language fr --output test.fr",
            "seq2seq translate model contract.de --tag '<law>' --output contract.en",
            "seq2seq translate model corpus.de.gz --output corpus.en --workers 8 --resume",
            "seq2seq translate model page.html --output page.en.html --glossary terms.tsv",
            "torchrun --nproc-per-node 8 -m seq2seq translate model corpus.de --output corpus.en --resume",
            "seq2seq translate model    # then type sentences")


def translate(
    model: options.Model,
    input: Annotated[Path | None, typer.Argument(
        metavar="INPUT", help="Text, one sentence per line, plain or compressed (.gz, .zst), or a document whose name "
        "tells its format (see --document); - is standard input.",
        show_default="standard input")] = None,
    document: Annotated[str | None, typer.Option(
        metavar="FORMAT", show_default="by the ending of INPUT's name", help="Format of a document: "
        f"{', '.join(name for name in FORMATS if name != 'text')} or text (paragraphs). Only the "
        "text of the document is translated. lines: INPUT has one sentence per line, whatever its name.")] = None,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    tag: options.LineTag = None,
    max_line_bytes: Annotated[int, typer.Option(
        metavar="N", min=1, help="Maximum length of a line in bytes; a longer line is an error.")] = MAX_LINE_BYTES,
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", metavar="FILE", rich_help_panel=options.FORMAT, show_default="standard output",
        help="Output file. Until an output of lines is complete, its finished blocks are in FILE.part.0 (and .1 and so "
        "on with torchrun).")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume", help="Continue after the finished blocks of lines that an interrupted call of the same command has "
        "left, if there are any.", rich_help_panel=options.FORMAT)] = False,
    format: Annotated[options.TextOrLines, typer.Option(
        help="text: a line of text for each line of input. jsonl: a JSON object for each line of input.",
        rich_help_panel=options.FORMAT)] = options.TextOrLines.text,
    decoding: Decoding = NO_OVERRIDES,
    prefix: Annotated[Path | None, typer.Option(
        "--prefix-file", metavar="FILE", help="File with the required beginning of each translation, line by line. An "
        "empty line requires no beginning.", show_default=False, rich_help_panel=options.CONSTRAINTS)] = None,
    require_file: Annotated[Path | None, typer.Option(
        metavar="FILE", help="File with a line for each input line: the words or phrases that its translation must "
        "contain, separated by tabs.", show_default=False, rich_help_panel=options.CONSTRAINTS)] = None,
    glossary: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Table of terms and their translations, separated by tabs. A term without a translation, "
        "or with 'do not translate' in a third column, stays as it is. If a translation lacks terms, a second search "
        "requires them. Terms still missing are reported.",
        show_default=False, rich_help_panel=options.CONSTRAINTS)] = None,
    placeholder: Annotated[list[str] | None, typer.Option(
        metavar="REGEX", help="Further text to keep unchanged. Variables such as %s, addresses, paths, emoji and so on "
        "are kept, too. Can be repeated.", show_default=False, rich_help_panel=options.CONSTRAINTS)] = None,
    keys: Annotated[str, typer.Option(
        metavar="KEYS", help="Keys whose strings are text, in a JSON or YAML document with a schema, separated by "
        "commas. Keys such as title, label and description are known.", show_default=False,
        rich_help_panel=options.CONSTRAINTS)] = "",
    skip_keys: Annotated[str, typer.Option(
        metavar="KEYS", help="Keys of a JSON or YAML document whose values stay, separated by commas.",
        show_default=False, rich_help_panel=options.CONSTRAINTS)] = "",
    ensemble: Annotated[list[Path] | None, typer.Option(
        metavar="MODEL", help="Another model with the same vocabulary, to form an ensemble. Can be repeated.",
        show_default=False, rich_help_panel=options.MODELS)] = None,
    fusion: Annotated[Path | None, typer.Option(
        metavar="LM", help="Language model for shallow fusion. It must have the target vocabulary of MODEL.",
        show_default=False, rich_help_panel=options.MODELS)] = None,
    device: options.Device = "auto",
    precision: options.PrecisionOption = options.Precision.auto,
    threads: options.Threads = None,
    workers: options.Workers = 1,
) -> None:
    """Translate text. Each line of input yields exactly one line of output.

    Only a newline character ends a line. Empty lines stay empty. A line that is too long for the model is translated in
    parts, which are joined. With --output, the command finishes the current block of lines after SIGINT (Ctrl-C) or
    SIGTERM and then stops. --resume continues after the finished blocks, also after a crash. The processes of torchrun
    share the blocks of a file. A document is translated whole, by one process.

    The options of the search, of constraints and of sampling override keys of the section decoding of the model's
    recipe; recipes/REFERENCE.md says more about each. Pieces are the subwords of the model's vocabulary.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    overrides = _checked_overrides(decoding, format, ensemble, fusion)
    from seq2seq.data.glossary import Glossary
    from seq2seq.documents.translate_document import (
        divide_document,
        languages_in_documents,
        model_recipe,
        read_document,
    )
    from seq2seq.formats.block import NO_KEYS, KeyNames
    from seq2seq.formats.placeholders import Placeholders
    from seq2seq.storage.checkpoints import resolve_model_path
    from seq2seq.translation.sources import constrained_sources, growing_blocks
    from seq2seq.translation.worker_processes import device_of_worker

    path, output = file_or_standard(input), file_or_standard(output)
    if world_size > 1:
        _require_several_processes_can(path, output, workers, device)
        device = device_of_worker(int(os.environ.get("LOCAL_RANK", 0)), device)
    may_be_document = document is None
    # A training may save better models while this command runs.
    model, ensemble = resolve_model_path(model), list(map(resolve_model_path, ensemble or ()))
    fusion = None if fusion is None else resolve_model_path(fusion)
    recipe = model_recipe(model, target_language, source_language)
    document = input_format(path, document, [code for pair in recipe.directions for code in pair.codes if code])
    if document and (format is options.TextOrLines.jsonl or prefix or require_file or resume or world_size > 1):
        raise UserError("--format jsonl, --prefix-file, --require-file, --resume and torchrun are for lines of text, "
                        f"not for documents. Do without them, or translate the lines of {path} as they are with "
                        "--document lines.")
    named = KeyNames(*(frozenset(filter(None, names.split(","))) for names in (keys, skip_keys)))
    if named != NO_KEYS and not document:
        raise UserError("--keys and --skip-keys are for JSON and YAML, not for lines of text. Do without them.")
    texts = [path, *(given for given in (prefix, require_file) if given is not None)]
    with ExitStack() as stack:
        contents = read_document(path) if document else b""
        opened = [] if document else [stack.enter_context(reading(path, max_line_bytes))]
        unfinished = (UnfinishedOutput(stack.enter_context(writing(output, texts))) if document else
                      stack.enter_context(resumable(texts, output, resume, rank, world_size)))
        if unfinished.output is not None and unfinished.output.terminal and is_binary(contents):
            raise UserError(f"{path} is a binary document, and its translation would appear in the terminal. Name a "
                            "file: --output FILE.")
        prefixes, phrases = (None if path is None else stack.enter_context(reading(path, max_line_bytes))
                             for path in (prefix, require_file))
        inputs = [*opened, *(text for text in (prefixes, phrases) if text is not None)]
        require_as_many_lines([text.name for text in inputs], *(text.total for text in inputs))
        name = str(path or "standard input")
        # Documents keep placeholders, also without the safety net.
        kept = Placeholders(placeholder or ()) if placeholder or document else None
        named_in_document = languages_in_documents(recipe.languages, source_language, target_language)
        divided = divide_document(contents, document, name, named_in_document, recipe.data.context,
                                  kept or Placeholders(), named) if document else None
        terms = None if glossary is None else Glossary.read(glossary, *recipe.languages.pair)
        lines = GivenLines(divided.sentences, name) if divided else opened[0]
        if path is None and may_be_document:
            lines.check = partial(require_lines, name)
        # `_stopping` is entered before `_translators` and left after it, to handle signals while the workers end.
        stop = stack.enter_context(_stopping(unfinished))
        translator = stack.enter_context(
            _translators(model, device, precision, threads, workers,
                         {"ensemble": ensemble, "fusion": fusion, "target_language": target_language,
                          "source_language": source_language}))
        section = _checked_section(translator, overrides, require_file is not None)
        translator = translator.protecting(kept, terms)
        reader = translator.reader.tagged(tag)
        if unfinished.parts:
            unfinished.begin({
                **_output_inputs(translator, [model, *ensemble, *([fusion] if fusion else ())], section),
                "texts": [sha256_of(text) for text in texts if text], "format": format.value, "threads": threads,
                "workers": workers, "glossary": glossary and sha256_of(glossary), "placeholder": placeholder,
                "source_language": source_language, "target_language": target_language, "tag": tag})
        if lines.live:
            console.print_message("Type a line and press Enter; Ctrl-D ends the input.")
        # Language tokens and tags in a document are text.
        language, no_tag = (recipe.languages.target, "") if divided else ("", None)
        sources = stop.interruptible(constrained_sources(lines, prefixes, phrases, reader, language, no_tag))
        stop.message = how_to_resume(unfinished)
        warnings = _Warnings(lines.name, divided.places if divided else None,
                             () if divided else reader.directions.codes, section.n_best)
        blocks = unfinished.pending(growing_blocks(sources, 1 if lines.live else BLOCK_LINES * workers))

        def output_of(line: Line, n_best: Sequence[Translation]) -> str:
            if format is options.TextOrLines.jsonl:
                return json_line(_translation_record(line, n_best, section)) + line.ending[-1:]
            return n_best[0].text + line.ending

        def write(block: list[tuple[Line, list[Translation]]]) -> None:
            unfinished.write("".join(output_of(line, n_best) for line, n_best in block), len(block))

        translate_block = partial(translator.translate, **overrides.values)
        sentences: list[tuple[Line, list[Translation]]] = []                    # of a document
        _translate_blocks(translate_block, blocks, lines, unfinished, sentences.extend if divided else write, warnings,
                          stop)
        if unfinished.output is not None:
            for data in stop.interruptible(unfinished.joined()):
                unfinished.output.write(data)
            if divided:
                with naming(name):
                    unfinished.output.write(divided.join([n_best[0].text for _, n_best in sentences],
                                                         named_in_document.target, translator.align,
                                                         warnings.faulty.warn))
        console.silence(False)
        warnings.finish()


def _translate_blocks(translate_block: Callable[..., list[list[Translation]]],
                      blocks: Iterator[list[tuple[Line, Source]]], lines: Input, unfinished: UnfinishedOutput,
                      write: Callable[[list[tuple[Line, list[Translation]]]], None], warnings: _Warnings,
                      stop: StopRequest) -> None:
    """Translate the pending blocks of lines, and write each of them when it is finished.

    translate_block: as `Translator.translate`. lines: input, for the progress bar. write: function that writes the
    lines of a block with their translations.
    """
    first = list(islice(blocks, 1))                         # skips finished blocks, which would distort the rate
    skipped = unfinished.skipped_lines
    with bar("translating", lines, unfinished.output, skipped) as advance:
        for block in chain(first, blocks):
            found = translate_block([source for _, source in block], progress=advance)
            translated = [(line, n_best) for (line, _), n_best in zip(block, found, strict=True)]
            write(translated)
            for line, n_best in translated:
                warnings.check(line, n_best)
            stop.raise_if_requested()
            advance(unfinished.skipped_lines - skipped)
            skipped = unfinished.skipped_lines


def input_format(path: Path | None, format: str | None, languages: Collection[str] = ()) -> str | None:
    """Return the format of an input of the command line, or None if it is lines of text.

    Args:
        format: value of --document: `lines` if the input is lines of text; None if the file's name decides the format.
        languages: codes of the model's languages. A file named by one of them is lines, such as .ts, Tsonga.
    """
    if format is None and path is not None:
        if path.suffix in COMPRESSED_SUFFIXES:
            if not names_lines(path.stem, languages):
                raise UserError(f"{path}: documents must not be compressed. Decompress it, or add --document lines if "
                                "each line of the file is a sentence.")
            return None
        start = _start(path)
        named = format_of(path.name, start)
        if named is None or names_lines(path.name, languages):
            require_lines(str(path), start, languages)
            if named:
                console.print_message(f"each line of {path} is translated as a sentence, because {path.suffix} is a "
                                      f"language of the model; with --document {named}, it is {named}")
            return None
        format = named
        console.print_message(f"{path} is translated as {format}; with --document lines, each line is a sentence")
    return None if format == "lines" else format


def _start(path: Path) -> bytes:
    """Return the beginning of a regular file, or all of an XML document; b"" for another file, and for one whose error
    appears on reading."""
    with suppress(OSError), open_regular(path) as file:
        return file.read(MAX_BYTES if path.suffix.lower() == ".xml" else BLOCK_BYTES)
    return b""


def require_lines(name: str, start: bytes = b"", languages: Collection[str] = ()) -> None:
    """Refuse a file that is not lines of text.

    Args:
        name: name of the file, which does not tell a format that is read. start: beginning of its contents. languages:
            see `input_format`.
    """
    suffix = Path(name).suffix
    if suffix.lower() == ".xml":
        root = root_element(start)
        problem = f"no format that is read has the root element <{root}>." if root else "it has no root element of XML."
    elif not names_lines(name, languages):
        problem = f"{suffix} is neither a format that is read, nor .txt, nor the code of a known language."
    elif b"\0" in start and not wide_encoding(start):
        problem = "the contents have bytes of value 0, which no text has."
    elif kind := structure_of(start):
        problem = f"the contents begin like {kind}, not like lines of text."
    else:
        return
    raise UserError(f"{name}: {problem} Convert it to one of {' '.join(SUFFIXES)}, or name its format with --document "
                    "FORMAT, or add --document lines if each line of the file is a sentence.")


def _require_several_processes_can(input: Path | None, output: Path | None, workers: int, device: str) -> None:
    """Raise UserError if the processes of `torchrun` cannot work with these options."""
    if input is None or not input.is_file() or output is None:
        raise UserError("the processes of torchrun need files that all of them can access: name the input, and the "
                        "output with --output FILE.")
    if workers > 1:
        raise UserError("--workers has no effect with torchrun, whose processes are the workers. Remove it; "
                        "--nproc-per-node of torchrun is the number of processes on a machine.")
    if ":" in device:
        raise UserError(f"--device {device} is one device, and several processes translate. Use cuda (each process "
                        "then uses its own GPU), cpu or auto.")


@contextmanager
def _stopping(unfinished: UnfinishedOutput) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a stop request, and yield the request. If the output cannot be resumed, or the model
    is still being loaded, the signals end the command immediately.
    """
    if not unfinished.parts:
        yield StopRequest()
        return
    torchrun = unfinished.world_size > 1
    with stopping_by_signal("" if unfinished.rank else "this block of lines",
                            "" if unfinished.rank else "stopped while the model was loaded", not torchrun,
                            TORCHRUN_STOP_SECONDS if torchrun else 0) as stop:
        stop.waiting = True
        yield stop


@contextmanager
def _translators(model: Path, device: str, precision: options.Precision, threads: int | None, workers: int,
                 models: dict[str, Any]) -> Iterator[Translator | TranslatorPool]:
    """Yield a translator or a pool of translators, and print the precision.

    models: arguments `ensemble`, `fusion`, `target_language` and `source_language` of `Translator.load`.
    """
    from seq2seq.translation.worker_processes import TranslatorPool

    if workers == 1:
        from seq2seq.translation.translator import Translator

        translator = Translator.load(model, device, precision.value, threads, **models)
        hint = precision_hint(precision, [translator.precision])
        languages = _languages_in_use(translator.reader.directions)
        console.print_message(f"translating{languages} in {translator.precision} on {translator.device}{hint}")
        yield translator
        return
    with TranslatorPool(model, workers, device, precision.value, threads or 1, **models) as pool:
        hint = precision_hint(precision, [pool.precision])
        languages = _languages_in_use(pool.reader.directions)
        console.print_message(f"translating{languages} in {pool.precision}, {pool.workers} workers{hint}")
        yield pool


def _languages_in_use(directions: Directions) -> str:
    """Return the direction for the message of a model that reads the language of the source; "" for other models."""
    return f" from {' to '.join(directions.chosen.pair)}" if directions.names_sources else ""


def _output_inputs(translator: Translator | TranslatorPool, models: Sequence[Path], decoding: DecodingSection,
                   ) -> dict[str, Any]:
    """Return the version, precision, kind of device, checksums of the models, and options, by name. The translations
    depend on them. models: paths of bundles."""
    from seq2seq.storage.directories import read_metadata

    return {"version": __version__, "precision": translator.precision,
            "device": str(translator.device).partition(":")[0],
            "models": [read_metadata(path, "bundle", ())["sha256"] for path in models],
            **{f"decoding.{name}": value for name, value in decoding.model_dump(mode="json").items()}}


def _checked_overrides(overrides: DecodingOverrides, format: options.TextOrLines, ensemble: list[Path] | None,
                       fusion: Path | None) -> DecodingOverrides:
    """Return the decoding options of the command line. Refuse those that have no effect on the output."""
    if format is options.TextOrLines.text:
        _require_text_output(overrides)
        overrides = overrides.with_values({"word_confidence": False})           # even if the recipe sets it
    if not ensemble:
        overrides.refuse_without_effect("ensemble_mean", "there is only one model. Add --ensemble MODEL.")
    if fusion is None:
        overrides.refuse_without_effect("fusion_weight", "there is no language model. Add --fusion LM.")
    return overrides


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


def _checked_section(translator: Translator | TranslatorPool, overrides: DecodingOverrides, requiring: bool,
                     ) -> DecodingSection:
    """Return the `decoding` section of the model's recipe with the overrides applied.

    requiring: True if the lines have required phrases (`--require-file`).
    """
    decoding = overrides.section(translator)
    if decoding.sampling:
        overrides.refuse_without_effect("beam_size", "sampling has no beam; --n-best is the number of samples.")
    else:
        overrides.refuse_without_effect("seed", "beam search draws nothing at random. Add --sampling.")
    if decoding.diverse_groups == 1:
        overrides.refuse_without_effect("diverse_strength", "the beam has only one group. Add "
                                        "--diverse-groups N.")
    if not (requiring or decoding.require or decoding.forbid):
        overrides.refuse_without_effect("ignore_case", "no phrases are given. Add --require TEXT or --forbid TEXT.")
    return decoding


class _Warnings:
    """Warnings about translated lines. The first warnings of each kind are printed on standard error, all others are
    only counted."""

    def __init__(self, name: str, places: Sequence[str] | None = None, codes: Sequence[str] = (), n_best: int = 1,
                 ) -> None:
        """name: name of the input. places: place of each sentence of a document; None if the input is lines.
        codes: languages whose tokens a line may begin with. n_best: number of translations that each line should have.
        """
        self.codes, self.places, self.n_best = codes, places, n_best
        self.few = LineWarnings(name, "lines have fewer different translations than requested")
        self.language = LineWarnings(name, "lines begin with the token of another language")
        self.long = LineWarnings(name, "lines were translated in parts, too")
        # Of lines, --format jsonl names all; a document has no other list of what to review.
        self.faulty = LineWarnings(name, "translations have faults; --format jsonl names them",
                                   MAX_WARNINGS if places is None else math.inf)
        self.terms = LineWarnings(name, "translations lack a term of the glossary")
        self.misplaced = LineWarnings(name, "translations have a term or required phrase out of place")
        self.unseen = UnseenCharacters(name)
        self.retried = self.placed = 0

    def check(self, line: Line, n_best: Sequence[Translation]) -> None:
        """Print or count the warnings about the translations of a line."""
        from seq2seq.recipe.directions import language_token
        from seq2seq.tokenizers.language_token import split_language_token

        best, place = n_best[0], line.place if self.places is None else self.places[line.number - 1]
        code = split_language_token(line.text)[0] if self.codes else ""
        if code and code not in self.codes:
            self.language.warn(place, f"{language_token(code)} is not a target language of the model, which has "
                               f"{', '.join(map(language_token, self.codes))}; it was translated as text")
        if best.parts > 1:
            reason = "" if best.retried else "too long for the model; "        # a retry also divides lines that fit
            self.long.warn(place, f"{reason}translated in {best.parts:,} parts, which are joined")
        if best.faults:
            self.faulty.warn(place, ", ".join(best.faults))
        if best.lost_terms:
            self.terms.warn(place, f"the translation lacks a term of the glossary: {', '.join(best.lost_terms)}")
        if best.misplaced_terms:
            self.misplaced.warn(place, "a term or required phrase is out of place, because it is aligned to no "
                                f"word: {', '.join(best.misplaced_terms)}")
        self.unseen.add(place, best.unseen)
        if best.parts and len(n_best) < self.n_best:                            # a blank line has no parts
            self.few.warn(place, f"{len(n_best):,} of {self.n_best:,} different translations were found")
        self.retried += best.retried
        self.placed += bool(best.placed_terms)

    def finish(self) -> None:
        for warnings in (self.few, self.language, self.long, self.faulty, self.terms, self.misplaced, self.unseen):
            warnings.finish()
        if self.retried:
            console.print_message(f"translations improved by a retry: {self.retried:,}")
        if self.placed:
            console.print_message("translations in which terms replace the words that they are aligned to, and words "
                                  f"around them may not agree: {self.placed:,}")


def _translation_record(line: Line, n_best: Sequence[Translation], decoding: DecodingSection) -> dict[str, Any]:
    from seq2seq.translation.translation import TERM_REPORTS

    best, with_words = n_best[0], decoding.word_confidence
    record = {"line": line.number, "source": line.text, "translation": best.text, "score": best.score,
              "log_probability": best.log_probability, "tokens": best.tokens, "parts": best.parts}
    record |= {name: list(terms) for name in TERM_REPORTS if (terms := getattr(best, name))}
    checked = decoding.safety_net or any(one.faults for one in n_best)         # placeholders are always checked
    if checked:
        record |= {"faults": list(best.faults), "retried": best.retried}
    record |= {"words": _words(best)} if with_words else {}
    if decoding.n_best > 1:
        record["n_best"] = [{"translation": one.text, "score": one.score, "log_probability": one.log_probability,
                             "tokens": one.tokens, **({"faults": list(one.faults)} if checked else {}),
                             **({"words": _words(one)} if with_words else {})} for one in n_best]
    return record


def _words(translation: Translation) -> list[dict[str, Any]]:
    return [{"word": word.text, "confidence": word.confidence} for word in translation.words]
