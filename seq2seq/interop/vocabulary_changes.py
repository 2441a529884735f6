"""Changes of the vocabulary of a model with the rows of its weights: trimming to a text, and new languages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seq2seq.data.corpus import read_lines
from seq2seq.errors import OptionError
from seq2seq.languages import is_same_language
from seq2seq.recipe import Languages
from seq2seq.tokenizers.new_pieces import extend
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.tokenizers.trimming import trim

SEED = 1
NEW_LANGUAGE = re.compile(r"([A-Za-z]{2,8}(?:[_-][A-Za-z0-9]{1,8})*)(?:=like:(\S+))?")
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class VocabularyChanges:
    """What is to be changed.

    keep_languages: codes of the languages to keep, in any form; (): all are kept, and the vocabulary is not trimmed.
    new_languages: codes of new languages, each with the language from whose token theirs starts; None: from the mean of
    all language tokens. text: files with text in all languages of the changed model, if it is trimmed, else in the new
    languages.
    """

    keep_languages: Sequence[str] = ()
    new_languages: Mapping[str, str | None] = field(default_factory=dict)
    text: Sequence[Path] = ()

    def __post_init__(self) -> None:
        if self.keep_languages and not self.text:
            raise OptionError("--keep-languages needs text in these languages, whose pieces are kept. Add "
                              "--vocabulary-from FILE.")
        if self.text and not (self.keep_languages or self.new_languages):
            raise OptionError("--vocabulary-from has no effect without --keep-languages or --add-language. Add one of "
                              "them, with the languages of the text.")

    @staticmethod
    def parse(keep_languages: str | None, add_language: Sequence[str], text: Sequence[Path]) -> VocabularyChanges:
        """Return the changes for the options of the command line: `en,sw`, and `xx` or `xx=like:yy`."""
        new = {}
        for option in add_language:
            match = NEW_LANGUAGE.fullmatch(option)
            if match is None:
                raise OptionError(f"--add-language {option}: expected a code, such as xx, or xx=like:yy if the token "
                                  "of xx is to start from that of yy.")
            new[match[1]] = match[2]
        return VocabularyChanges([code.strip() for code in keep_languages.split(",")] if keep_languages else (), new,
                                 text)

    @property
    def languages(self) -> list[str]:
        """Codes of the languages of the changed model, as given; [] if all are kept."""
        return list(dict.fromkeys([*self.keep_languages, *self.new_languages])) if self.keep_languages else []

    def keeps(self, code: str) -> bool:
        """Return True if the changed model has the language."""
        return not self.keep_languages or any(is_same_language(one, code) for one in self.languages)

    def kept(self, directions: Sequence[Languages]) -> list[Languages]:
        """Return the directions that the changed model has."""
        known = dict.fromkeys(code for each in directions for code in each.codes)
        unknown = [code for code in self.keep_languages if not any(is_same_language(code, one) for one in known)]
        kept = [each for each in directions if all(map(self.keeps, each.codes))]
        if unknown or not kept:
            fault = f"does not have {unknown[0]}" if unknown else "has no direction between these languages"
            raise OptionError(f"--keep-languages {','.join(self.keep_languages)}: the model {fault}. Its languages are "
                              f"{', '.join(known)}.")
        return kept

    def apply(self, tokenizers: Tokenizers, weights: Weights) -> tuple[Tokenizers, Weights]:
        """Return the changed tokenizers and weights."""
        if self.new_languages:
            extended = extend(tokenizers, self._lines(), self.new_languages)
            starts = _by_weight(extended.source_starts, extended.target_starts)
            tokenizers, weights = extended.tokenizers, {
                name: _with_new_rows(weight, starts[name]) if name in starts else weight
                for name, weight in weights.items()}
        if self.keep_languages:
            if tokenizers.source.begins_with_own_language:
                for code in self.keep_languages:
                    tokenizers.source.own_code(code)                            # raises an error if there is none
            codes = {code for side in (tokenizers.source, tokenizers.target) for code in side.languages
                     if self.keeps(code)}
            trimmed = trim(tokenizers, self._lines(), codes)
            rows = _by_weight(trimmed.source_ids, trimmed.target_ids)
            tokenizers, weights = trimmed.tokenizers, {
                name: weight[torch.tensor(rows[name])] if name in rows else weight for name, weight in weights.items()}
        return tokenizers, weights

    def _lines(self) -> Iterator[str]:
        for path in self.text:
            yield from read_lines(path)


def _by_weight(source: Sequence[Any], target: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return what belongs to the ids of each weight that has a row for each id."""
    return {"source_embedding": source,
            **dict.fromkeys(("target_embedding", "output_weight", "output_bias"), target)}


def _with_new_rows(weight: Tensor, starts: Sequence[tuple[int, ...]]) -> Tensor:
    """Return a weight with further rows.

    A row without ids to start from is drawn from a normal distribution with the mean and the standard deviation of the
    old rows. With their mean alone, all characters of a new script would be the same for the encoder.

    Args:
        weight: (vocab_size, d_model), or (vocab_size,).
        starts: for each new row, the ids of the rows whose mean it is, among them earlier new rows; or ().
    """
    generator = torch.Generator().manual_seed(SEED)
    mean, deviation = weight.mean(0), weight.std(0)
    rows = torch.cat([weight, weight.new_empty(len(starts), *mean.shape)])
    for index, ids in enumerate(starts, len(weight)):
        drawn = torch.randn(mean.shape, generator=generator)
        rows[index] = rows[list(ids)].mean(0) if ids else mean + deviation * drawn
    return rows
