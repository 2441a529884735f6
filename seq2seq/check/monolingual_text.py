"""Text in the target language for back-translation (`seq2seq init --monolingual`)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

from seq2seq import console
from seq2seq.check.corpus_statistics import scanned
from seq2seq.check.pair_checks import LanguageChecker
from seq2seq.check.results import CorpusReport
from seq2seq.check.split_text import Sentences
from seq2seq.check.warnings import add_line_warnings, add_tokenization_warnings
from seq2seq.data.corpus import Counts, read_corpus
from seq2seq.data.damaged_text import is_damaged
from seq2seq.data.leakage import comparable
from seq2seq.errors import CorpusError, OptionError
from seq2seq.languages import main_language
from seq2seq.recipe import Cleaning, Corpus, Languages
from seq2seq.recipe.data_section import is_table
from seq2seq.tokenizers.source import Source

MAX_LINES_READ = 10_000
"""Number of lines from which the language of a file is judged."""


def choose_lines(paths: Sequence[Path], held_out: Sentences, maximum: int, seed: int, checker: LanguageChecker
                 ) -> tuple[list[str], int, int]:
    """Draw lines at random among those of some files. Return those in the target language in their order, the number
    of lines read, and the number of drawn lines that look like the source language.

    Blank and damaged lines, repetitions, and sentences of the validation and test sets are not drawn: a model that
    learned their references would be overrated. The same files and the same seed give the same lines.

    Args:
        held_out: sentences of the validation and test sets.
        maximum: maximum number of lines, which memory holds.
        checker: result of `check_monolingual_text`.
    """
    generator, chosen, seen, suitable, read = random.Random(seed), dict[int, str](), set[int](), 0, 0
    places: list[int] = []                                          # numbers of the chosen lines
    label = str(paths[0]) + (f" and {len(paths) - 1:,} others" if len(paths) > 1 else "")
    for line in console.with_progress(f"reading {label}", _lines(paths), "lines"):
        read += 1
        text = comparable(line)
        key = hash(text)
        if not text or key in seen or is_damaged(line) or held_out.share_one_with("", line):
            continue
        seen.add(key)
        suitable += 1
        # Reservoir sampling (Vitter 1985, algorithm R).
        if len(places) < maximum:
            places.append(read)
        else:
            place = generator.randrange(suitable)
            if place >= maximum:
                continue
            del chosen[places[place]]
            places[place] = read
        chosen[read] = line
    wrong = [number for number, line in chosen.items() if checker.is_like_source(line)]
    for number in wrong:
        del chosen[number]
    if not chosen:
        raise CorpusError(f"{label} has no line for back-translation: of {read:,} lines, each is blank or damaged, a "
                          "sentence of the validation or test set, or in the source language. Give other text.")
    return [chosen[number] for number in sorted(chosen)], read, len(wrong)


def check_monolingual_text(paths: Sequence[Path], pairs: Sequence[tuple[str, str]], languages: Languages
                           ) -> LanguageChecker:
    """Raise UserError if a file is no text file, is empty, or begins more like the source than like the target of the
    pairs; warn if it looks like a third language. Return the checker of the languages.

    pairs: pairs of the training text, in the right languages.
    """
    checker = LanguageChecker(pairs, languages)
    for path in paths:
        if path.exists() and not path.is_file():                                # a pipe could be read only once
            raise OptionError(f"--monolingual {path} is not a regular file. Write the text to a file first; it may be "
                              "compressed.")
        if is_table(path):
            raise OptionError(f"--monolingual {path}: a file with both sides. Give a text file, a sentence per line.")
        lines = list(islice(_lines([path]), MAX_LINES_READ))
        if not any(map(str.strip, lines)):
            raise CorpusError(f"--monolingual {path} is empty. Give a text file, a sentence per line.")
        _warn_about_form(path, lines, languages)
        if not checker.can_check:
            continue
        with_sources = zip(cycle(source for source, _ in pairs), lines, strict=False)
        report = checker.report((number, source, line) for number, (source, line) in enumerate(with_sources, 1))
        code = report.other_languages.get("target")
        if code == main_language(languages.source or ""):
            raise CorpusError(f"--monolingual {path}: the text looks more like the source of the pairs "
                              f"({languages.source}) than like their target ({languages.target}). Give text in the "
                              "target language, or, if the sides of the pairs are exchanged, the pairs in the other "
                              "order.")
        if code is not None:
            console.warn(f"--monolingual {path}: the text looks like {code}, not {languages.target}. Check the file.")
    return checker


def _warn_about_form(path: Path, lines: Sequence[str], languages: Languages) -> None:
    """Print the warnings that `check` has about the lines of a corpus, but not about those that are not drawn."""
    report, warnings = CorpusReport("--monolingual", str(path)), list[str]()
    for _ in scanned(((number, Source(""), line) for number, line in enumerate(lines, 1)), report, 1, languages, {}):
        pass
    report.findings = {kind: found for kind, found in report.findings.items() if kind not in ("duplicate", "damaged")}
    add_line_warnings(report, Cleaning(), warnings)
    add_tokenization_warnings([report], warnings)
    for warning in warnings:
        console.warn(warning)


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        for _, _, line in read_corpus(Corpus(text=str(path)), Path(), Counts()):
            yield line
