"""Vocabulary of M2M-100, NLLB-200 and mBART-50, multilingual models of fairseq: every text begins with the token of its
own language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import Vocabulary


class FairseqVocabulary(MarianVocabulary):
    """Vocabulary in which a token before each text names the language of this text, in sources and in targets.

    The tokens have the form of all language tokens, `>>eng_Latn<<`. The token of a target is given, not predicted: the
    search forces it (`first_id`), and it has no part in the log-probability of a translation.
    """

    begins_with_own_language = True

    def __init__(self, model: bytes, ids: Mapping[str, int], where: str = "the tokenizer", is_target: bool = False
                 ) -> None:
        """is_target: True for the vocabulary of targets. Other arguments: see `MarianVocabulary`."""
        super().__init__(model, ids, where)
        self.is_target = is_target

    def with_pieces(self, names: Sequence[str], sentencepiece: bytes) -> Vocabulary:
        return FairseqVocabulary(sentencepiece, {name: index for index, name in enumerate(names)},
                                 is_target=self.is_target)

    @property
    def _never_generated_symbols(self) -> set[int]:
        symbols = {index for name, index in self.ids.items() if name in ("<pad>", "<mask>")}
        return super()._never_generated_symbols | symbols | set(self.languages.values())

    @cached_property
    def piece_bytes(self) -> list[bytes]:
        hidden = self._never_generated_symbols
        return [b"" if index in hidden else text for index, text in enumerate(super().piece_bytes)]

    def language_id(self, code: str) -> int | None:
        """Return the id of the token of a language, also for the code of another form if it names one language only:
        `deu_Latn` for `de`; None for ""."""
        if code and super().language_id(code) is None:
            self._language_ids[code] = self.languages[self.own_code(code)]
        return self._language_ids[code]

    def token_language(self, line: Source) -> str:
        return line.language if self.is_target else line.source_language

    def first_id(self, language: str) -> int | None:
        return self.language_id(language)

    def target_lines(self, targets: Sequence[str], sources: Sequence[str | Source]) -> Sequence[str | Source]:
        return [Source(target, language="" if isinstance(source, str) else source.language)
                for target, source in zip(targets, sources, strict=True)]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        tokens = set(self.languages.values())
        return super().decode([[index for index in map(int, line) if index not in tokens] for line in ids])
