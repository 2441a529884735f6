"""Warnings about the translations of a text."""

from __future__ import annotations

from collections.abc import Sequence

from seq2seq import console
from seq2seq.tokenizers.language_token import LANGUAGE_TOKEN
from seq2seq.translation.text_io import Line, LineWarnings
from seq2seq.translation.translator import Translation


class TranslationWarnings:
    """Warnings about translated lines. The first warnings of each kind are printed on standard error, all others are
    only counted."""

    def __init__(self, name: str, places: Sequence[str] | None = None, language_tokens: Sequence[str] = ()) -> None:
        """name: name of the input. places: place of each sentence of a document; None if the input is lines.
        language_tokens: tokens of the model's target languages, such as `>>de<<`; () if there is only one language."""
        self.language_tokens = language_tokens
        self.language = LineWarnings(name, "lines begin with the token of another language", places)
        self.long = LineWarnings(name, "lines are too long for the model; they were translated in parts, too", places)
        self.faulty = LineWarnings(name, "translations have faults; --format jsonl names them", places)
        self.terms = LineWarnings(name, "translations lack a term of the glossary", places)
        self.retried = 0

    def check(self, line: Line, best: Translation) -> None:
        """Print or count the warnings about the translation of a line."""
        token = LANGUAGE_TOKEN.match(line.text) if self.language_tokens else None
        if token and token[0] not in self.language_tokens:
            self.language.warn(line.number, f"{token[0]} is not a target language of the model, which has "
                               f"{', '.join(self.language_tokens)}; it was translated as text")
        if best.parts > 1:
            self.long.warn(line.number, f"too long for the model; translated in {best.parts:,} parts, which are joined")
        if best.faults:
            self.faulty.warn(line.number, ", ".join(best.faults))
        if best.lost_terms:
            self.terms.warn(line.number, f"the translation lacks a term of the glossary: {', '.join(best.lost_terms)}")
        self.retried += best.retried

    def finish(self) -> None:
        """Print the counts."""
        self.language.finish()
        self.long.finish()
        self.faulty.finish()
        self.terms.finish()
        if self.retried:
            console.print_message(f"translations improved by a retry: {self.retried:,}")
