"""Candidate selections (see `options.CandidateSelection`): sampling, diverse beam search, lexical constraints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seq2seq.search.logits_processors import Phrase, begins_in_word, decode_pieces
from seq2seq.search.options import Hypotheses
from seq2seq.search.sampling import sample_tokens, truncate, uniform_numbers
from seq2seq.search.topk import topk_of_groups
from seq2seq.tokenizers.tokenizer import END_ID


@dataclass(frozen=True)
class Sampling:
    """Candidate selection that samples each hypothesis token by token. Each group must consist of one hypothesis.

    For given logits, a sample depends only on the seed, the key of its sentence and its index among the samples of the
    sentence. The log-probability of a sample is computed from the logits before temperature and truncation (see
    `sampling.truncate`).

    keys: (sentences, numbers), key of each sentence of the search input; one or more non-negative integers per key.
    temperature, top_k, top_p, min_p: see the functions in `sampling`.
    """

    seed: int
    keys: np.ndarray
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __call__(self, hypotheses: Hypotheses, logits: Tensor, past: Tensor,
                 count: int) -> tuple[Tensor, Tensor, Tensor]:
        assert past.shape[2] == 1, "each group must consist of one hypothesis"
        keys = self.keys[hypotheses.lines].T[:, :, None]                        # (numbers, sentences, 1)
        numbers = uniform_numbers(self.seed, *keys, np.arange(past.shape[1]), hypotheses.tokens.shape[2])
        truncated = truncate(logits, temperature=self.temperature, k=self.top_k, p=self.top_p, min_share=self.min_p)
        ids = sample_tokens(truncated, numbers.ravel())
        totals = past + logits.gather(1, ids[:, None]).view(past.shape)
        return totals, torch.zeros_like(ids).view(past.shape), ids.view(past.shape)


@dataclass(frozen=True)
class DiverseBeams:
    """Diverse beam search (Vijayakumar et al. 2016, arXiv:1610.02424, equation 7, with Hamming diversity).

    In each step, the groups of the beam select their candidates one after another. For each time that an earlier group
    selected a token in this step, the token's score is reduced by `strength`. The penalty affects only the selection,
    not the log-probability of the hypothesis.
    """

    strength: float

    def __call__(self, hypotheses: Hypotheses, logits: Tensor, past: Tensor,
                 count: int) -> tuple[Tensor, Tensor, Tensor]:
        sentences, groups, size = past.shape
        by_group = logits.view(sentences, groups, size, -1)
        times_selected = logits.new_zeros(sentences, by_group.shape[3])         # by earlier groups, for each token
        selected = []
        for group in range(groups):
            group_logits, group_past = by_group[:, group], past[:, group]
            penalised = (group_logits - self.strength * times_selected[:, None]).flatten(0, 1)
            best, beams, ids = topk_of_groups(penalised, group_past, count)     # each (sentences, candidates)
            flat = beams * group_logits.shape[2] + ids
            totals = group_past.gather(1, beams) + group_logits.flatten(1).gather(1, flat)
            totals.masked_fill_(best == -math.inf, -math.inf)           # surplus candidates of small vocabularies
            selected.append((totals, beams, ids))
            # `count` is twice the group size. Only the first half of the candidates count as selected.
            possible = totals[:, : count // 2] > -math.inf
            times_selected.scatter_add_(1, ids[:, : count // 2], possible.to(times_selected.dtype))
        totals, beams, ids = (torch.stack(parts, 1) for parts in zip(*selected, strict=True))
        return totals, beams, ids


@dataclass(frozen=True)
class RequiredPhrase:
    """Phrase that the text of a finished target must contain, in any segmentation.

    spellings: token sequences that spell the phrase; at least one, none empty. Search adds their tokens as candidates.
    """

    phrase: Phrase
    spellings: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Number of tokens of the shortest spelling."""
        return min(map(len, self.spellings))


class RequiredPhrases:
    """Lexically constrained beam search: the text of every target contains all required phrases of its sentence.

    If the text ends with a whole-word phrase, it contains the phrase for now, because `</s>` may be the next token. If
    the next token continues the last word of the phrase (for example "ing" after "kick"), the phrase is missing again.

    The beam is divided among banks (Post and Vilar 2018, arXiv:1804.06609, "dynamic beam allocation"). A bank contains
    the candidates that lack the same number of tokens of required phrases. The beam takes the best candidate of each
    bank, then the second best of each bank, and so on, until it is full. In each round, the bank whose candidates lack
    the fewest tokens comes first.
    """

    def __init__(self, phrases: Sequence[Sequence[RequiredPhrase]], pieces: Sequence[bytes]) -> None:
        """phrases: required phrases of each sentence in the input of the search. pieces: text of each id in UTF-8, with
        a space before a piece that begins a word."""
        self.phrases = [list(dict.fromkeys(of_sentence)) for of_sentence in phrases]
        self.pieces = pieces
        self.continues_word = _continues_word(tuple(pieces))

    def ban_end_if_missing(self, hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        """Set the logit of `</s>` to -inf for hypotheses that lack a required phrase.

        `SearchOptions` must have both this object as `candidate_selection` and this method as a logits processor.
        """
        for row, (target, phrases) in enumerate(self._rows(hypotheses)):
            text = decode_pieces(target, self.pieces) if phrases else ""
            if not all(required.phrase.is_in(text) for required in phrases):
                logits[row, END_ID] = -math.inf
        return logits

    def missing_tokens(self, target: Sequence[int], phrases: Sequence[RequiredPhrase]) -> int:
        """Return the number of tokens of required phrases that a target still lacks.

        Each missing phrase counts with the length of its shortest spelling. If the target ends with the beginning of a
        spelling of a missing phrase, this phrase counts with the rest of the spelling. Of several such phrases, only
        the one that saves the most tokens counts in this way.
        """
        text = decode_pieces(target, self.pieces) if phrases else ""
        missing = [required for required in phrases if not required.phrase.is_in(text)]
        saved = (required.size - len(spelling) + self._spelled_tokens(target, required.phrase, spelling)
                 for required in missing for spelling in required.spellings)
        return sum(required.size for required in missing) - max(saved, default=0)

    def __call__(self, hypotheses: Hypotheses, logits: Tensor, past: Tensor,
                 count: int) -> tuple[Tensor, Tensor, Tensor]:
        sentences, groups, beam = past.shape
        assert groups == 1, "required phrases need a beam of one group"
        _, beams, ids = topk_of_groups(logits, past[:, 0], count)
        first_rows = beam * torch.arange(sentences, device=past.device)[:, None]
        # The candidates are pairs (row, id): the best ones of each sentence, the best one of each hypothesis, and the
        # next tokens of missing phrases. A dict keeps each pair once, in this order.
        considered = dict.fromkeys(zip((beams + first_rows).flatten().tolist(), ids.flatten().tolist(),
                                       strict=True))
        considered |= dict.fromkeys(enumerate(logits.argmax(1).tolist()))
        by_row, completed = list(self._rows(hypotheses)), []
        for row, (target, phrases) in enumerate(by_row):
            text = decode_pieces(target, self.pieces) if phrases else ""
            considered |= dict.fromkeys((row, spelling[self._spelled_tokens(target, required.phrase, spelling)])
                                        for required in phrases if not required.phrase.is_in(text)
                                        for spelling in required.spellings)
            if any(required.phrase.is_in(text) and not required.phrase.is_in(f"{text}x") for required in phrases):
                completed.append(row)
        if completed:
            # If a phrase was just completed, the most probable tokens may all continue its last word, and then the
            # phrase would be missing again. The best token that continues no word is therefore a candidate, too.
            ending = logits[completed].masked_fill(self.continues_word.to(logits.device), -math.inf).argmax(1)
            considered |= dict.fromkeys(zip(completed, ending.tolist(), strict=True))
        rows, next_ids = torch.tensor(list(considered), device=logits.device).T
        totals = (logits[rows, next_ids] + past.flatten()[rows]).tolist()
        by_sentence: list[list[_Candidate]] = [[] for _ in range(sentences)]
        for (row, next_id), total in zip(considered, totals, strict=True):
            if total > -math.inf:
                target, phrases = by_row[row]
                missing = self.missing_tokens((*target, next_id), phrases) if phrases else 0
                by_sentence[row // beam].append(_Candidate(total, row % beam, next_id, missing))
        # If a sentence has fewer than `count` candidates, candidates with a total of -inf are appended.
        selected = [[*_round_robin(candidates)[:count],
                     *[_Candidate(-math.inf, 0, END_ID, 0)] * (count - len(candidates))] for candidates in by_sentence]
        return (past.new_tensor([[[candidate.total for candidate in each]] for each in selected]),
                ids.new_tensor([[[candidate.beam for candidate in each]] for each in selected]),
                ids.new_tensor([[[candidate.next_id for candidate in each]] for each in selected]))

    def _spelled_tokens(self, target: Sequence[int], phrase: Phrase, spelling: Sequence[int]) -> int:
        """Return the length of the longest proper prefix of the spelling with which the target ends, or 0.

        A prefix counts only if the phrase may begin where the prefix begins: the spelling starts with a space, or
        `Phrase.may_begin_after` allows the text before the prefix.
        """
        spaced = self.pieces[spelling[0]].startswith(b" ")
        for size in range(min(len(spelling) - 1, len(target)), 0, -1):
            before = len(target) - size
            if tuple(target[before:]) == tuple(spelling[:size]) and (
                    spaced or phrase.may_begin_after(decode_pieces(target[:before], self.pieces))):
                return size
        return 0

    def _rows(self, hypotheses: Hypotheses) -> Iterator[tuple[tuple[int, ...], list[RequiredPhrase]]]:
        """Yield the target and the phrases of each row."""
        for line, targets in zip(hypotheses.lines, hypotheses.tokens.tolist(), strict=True):
            for target in targets:
                yield tuple(target), self.phrases[line]


@lru_cache(maxsize=4)
def _continues_word(pieces: tuple[bytes, ...]) -> Tensor:
    """Return a mask of the vocabulary, (vocab_size,) bool. True = the piece may continue the word before it.

    Such a piece begins with a letter, a digit, a combining mark or an incomplete UTF-8 character.
    """
    texts = (piece.decode(errors="surrogateescape") for piece in pieces)
    return torch.tensor([begins_in_word(text) or "\udc80" <= text[:1] <= "\udcff" for text in texts])


class _Candidate(NamedTuple):
    """Continuation of a hypothesis.

    missing: number of tokens of required phrases that the continuation lacks. This number identifies the bank.
    """

    total: float
    beam: int
    next_id: int
    missing: int


def _round_robin(candidates: list[_Candidate]) -> list[_Candidate]:
    """Order candidates round-robin over banks; see `RequiredPhrases`."""
    ranks: Counter[int] = Counter()                                             # candidates so far in each bank
    ranked = []
    for candidate in sorted(candidates, key=lambda candidate: -candidate.total):
        ranked.append((ranks[candidate.missing], candidate.missing, candidate))
        ranks[candidate.missing] += 1
    return [candidate for *_, candidate in sorted(ranked, key=lambda entry: entry[:2])]
