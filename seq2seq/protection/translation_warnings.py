"""Warnings about the translations of a text."""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq import console
from seq2seq.translation.line_translator import Translation
from seq2seq.translation.text_io import Line, LineWarnings


class TranslationWarnings:
    """Warnings about translated lines. The first warnings of each kind are printed on standard error, all others are
    only counted."""

    def __init__(self, name: str, places: Sequence[str] | None = None) -> None:
        """name: name of the input. places: place of each sentence of a document; None if the input is lines."""
        self.long = LineWarnings(name, "lines are too long for the model; they were translated in parts, too", places)
        self.faulty = LineWarnings(name, "translations have faults; --format jsonl names them", places)
        self.terms = LineWarnings(name, "translations lack a term of the glossary", places)
        self.retried = 0

    def check(self, line: Line, best: Translation) -> None:
        """Print or count the warnings about the translation of a line."""
        if best.parts > 1:
            self.long.warn(line.number, f"too long for the model; translated in {best.parts:,} parts, which are joined")
        if best.faults:
            self.faulty.warn(line.number, ", ".join(best.faults))
        if best.lost_terms:
            self.terms.warn(line.number, f"the translation lacks a term of the glossary: {', '.join(best.lost_terms)}")
        self.retried += best.retried

    def finish(self) -> None:
        """Print the counts."""
        self.long.finish()
        self.faulty.finish()
        self.terms.finish()
        if self.retried:
            console.print_message(f"translations improved by a retry: {self.retried:,}")
