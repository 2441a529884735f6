"""Text in the target language for back-translation (`seq2seq init --monolingual`)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from seq2seq import console
from seq2seq.check.pair_checks import LanguageChecker
from seq2seq.check.split_text import Sentences
from seq2seq.data.corpus import Counts, read_corpus
from seq2seq.data.damaged_text import is_damaged
from seq2seq.data.leakage import comparable
from seq2seq.errors import CorpusError, OptionError
from seq2seq.languages import main_language
from seq2seq.recipe import Corpus, Languages
from seq2seq.recipe.data_section import is_table


def choose_lines(paths: Sequence[Path], held_out: Sentences, maximum: int, seed: int) -> tuple[list[str], int]:
    """Draw lines at random among those of some files, and return them in their order, with the number of lines read.

    Blank and damaged lines, repetitions, and sentences of the validation and test sets are not drawn: a model that
    learned their references would be overrated. The same files and the same seed give the same lines.

    Args:
        held_out: sentences of the validation and test sets.
        maximum: maximum number of lines, which memory holds.
    """
    generator, chosen, seen, suitable, read = random.Random(seed), dict[int, str](), set[int](), 0, 0
    places: list[int] = []                                          # numbers of the chosen lines
    if tables := [path for path in paths if is_table(path)]:
        raise OptionError(f"--monolingual {tables[0]}: a file with both sides. Give a text file, a sentence per line.")
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
    if not chosen:
        raise CorpusError(f"{label} has no line for back-translation: of {read:,} lines, each is blank or damaged, or "
                          "a sentence of the validation or test set. Give other text.")
    return [chosen[number] for number in sorted(chosen)], read


def require_language(lines: Sequence[str], pairs: Sequence[tuple[str, str]], languages: Languages, path: Path) -> None:
    """Raise CorpusError if the lines are in the source language; warn if they look like a third one.

    pairs: pairs of the training text, in the right languages. path: first file of the lines, for the message.
    """
    checker = LanguageChecker(pairs, languages)
    if not checker.can_check:
        return
    sources = (source for source, _ in cycle(pairs))
    with_sources = enumerate(zip(sources, lines, strict=False), 1)
    report = checker.report((number, source, line) for number, (source, line) in with_sources)
    code = report.other_languages.get("target")
    if code == main_language(languages.source or ""):
        raise CorpusError(f"--monolingual {path}: the text looks like {code}, the source language. Back-translation "
                          f"needs text in the target language, {languages.target}.")
    if code is not None:
        console.warn(f"--monolingual {path}: the text looks like {code}, not {languages.target}. Check the file.")


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        for _, _, line in read_corpus(Corpus(text=str(path)), Path(), Counts()):
            yield line
