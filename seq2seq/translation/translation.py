"""Translation of a line, with what is known about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seq2seq.console import html_table
from seq2seq.translation.word_confidence import Word

ReportProgress = Callable[[int], None]
"""Function that is called with the number of lines or pairs that were finished since its last call."""
TERM_REPORTS = ("lost_terms", "placed_terms", "misplaced_terms")
"""Fields of a translation that name terms, which reports show if they are not empty."""


@dataclass(frozen=True)
class Translation:
    """Translation of a line.

    text: detokenized text, without line end. score: number by which the translations of a line are ranked.
    log_probability: log p(target | source), `</s>` included; for a line translated in parts, the sum over the parts.
    tokens: number of target pieces, plus one `</s>` per part. parts: number of parts in which the line was translated;
    0 for blank lines, which are returned unchanged. words: words of the translation with the model's confidence, if
    requested. faults: names of the translation's faults (see `output_faults.FAULTS`); empty if it was not checked.
    retried: True if the translation comes from a retry. Of terms of the glossary and required phrases (see
    `protected_translation`): lost_terms: those that the translation lacks. placed_terms: those that were put
    in place of the words that they are aligned to, because the search did not find a place for them; score,
    log_probability and tokens are those of the translation before. misplaced_terms: those that are in the translation,
    but out of place, because they could not be aligned. unseen: characters of the source that the model's training
    text never had.
    """

    text: str
    score: float
    log_probability: float
    tokens: int
    parts: int = 1
    words: tuple[Word, ...] = ()
    faults: tuple[str, ...] = ()
    retried: bool = False
    lost_terms: tuple[str, ...] = ()
    placed_terms: tuple[str, ...] = ()
    misplaced_terms: tuple[str, ...] = ()
    unseen: str = ""

    def _repr_html_(self) -> str:
        """Return a table for a notebook: text, score, and what else is known about the translation."""
        notes = {"parts": str(self.parts) if self.parts > 1 else "", "faults": ", ".join(self.faults),
                 "retried": "yes" if self.retried else "", "characters that training never had": self.unseen,
                 **{name.replace("_", " "): ", ".join(getattr(self, name)) for name in TERM_REPORTS},
                 "confidence": "  ".join(f"{word.text} {word.confidence:.2f}" for word in self.words)}
        return html_table([("translation", self.text), ("score", f"{self.score:.3f}"),
                           ("log p", f"{self.log_probability:.3f} ({self.tokens:,} tokens)"),
                           *((name, note) for name, note in notes.items() if note)])
