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
from seq2seq.search.sampling import draw, narrowed, uniforms
from seq2seq.search.topk import most_probable
from seq2seq.tokenizers.tokenizer import END_ID


@dataclass(frozen=True)
class Sampling:
    """Sampling: each hypothesis is drawn token by token. The search has one group per hypothesis.

    Samples depend only on the seed, the line and the sample's index. Their log-probability is the model's, before
    temperature and truncation (see `sampling.narrowed`).

    lines: (sentences, numbers), integers that identify each line of the search's input.
    """

    seed: int
    lines: np.ndarray
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __call__(self, hypotheses: Hypotheses, logits: Tensor, past: Tensor,
                 count: int) -> tuple[Tensor, Tensor, Tensor]:
        assert past.shape[2] == 1, "a group is a sample"
        names = self.lines[hypotheses.lines].T[:, :, None]                      # (numbers, sentences, 1)
        numbers = uniforms(self.seed, *names, np.arange(past.shape[1]), hypotheses.tokens.shape[2])
        possible = narrowed(logits, temperature=self.temperature, k=self.top_k, p=self.top_p, minimum=self.min_p)
        words = draw(possible, numbers.ravel())
        totals = past + logits.gather(1, words[:, None]).view(past.shape)
        return totals, torch.zeros_like(words).view(past.shape), words.view(past.shape)


@dataclass(frozen=True)
class DiverseBeams:
    """DiverseBeams beam search (Vijayakumar et al. 2016, arXiv:1610.02424, equation 7, with Hamming diversity).

    The groups of the beam select one after another. A token's score is reduced by `strength` for each hypothesis of
    an earlier group that selected it in this step. The penalty only affects selection, not the hypothesis'
    log-probability.
    """

    strength: float

    def __call__(self, hypotheses: Hypotheses, logits: Tensor, past: Tensor,
                 count: int) -> tuple[Tensor, Tensor, Tensor]:
        sentences, groups, size = past.shape
        by_group = logits.view(sentences, groups, size, -1)
        chosen = logits.new_zeros(sentences, by_group.shape[3])                 # counts of the earlier groups
        considered = []
        for group in range(groups):
            own, own_past = by_group[:, group], past[:, group : group + 1]
            penalised = (own - self.strength * chosen[:, None]).flatten(0, 1)
            _, beams, ids = most_probable(penalised, own_past, count)
            flat = (beams * own.shape[2] + ids).flatten(1)
            totals = own_past.gather(2, beams) + own.flatten(1).gather(1, flat)[:, None]
            considered.append((totals, beams, ids))
            survivors = ids[:, 0, : count // 2]
            chosen.scatter_add_(1, survivors, (totals[:, 0, : count // 2] > -math.inf).to(chosen.dtype))
        totals, beams, ids = (torch.cat(parts, 1) for parts in zip(*considered, strict=True))
        return totals, beams, ids


@dataclass(frozen=True)
class RequiredPhrase:
    """Phrase that the text of a finished target must contain, however it is segmented.

    spellings: token sequences that spell the phrase; search proposes their tokens one after another. At least one, none
    of them empty.
    """

    phrase: Phrase
    spellings: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Number of tokens of the shortest spelling."""
        return min(map(len, self.spellings))


class RequiredPhrases:
    """Lexically constrained beam search: the text of every target contains all phrases of its line.

    A phrase of whole words is satisfied as soon as the text ends in it, because `</s>` may follow. If the next token
    continues its last word ("kick", "ing"), the phrase is missing again.

    The beam is divided among banks of hypotheses that lack the same number of tokens (Post and Vilar 2018,
    arXiv:1804.06609, "dynamic beam allocation"), here round-robin: the best candidate that lacks the fewest tokens, the
    best that lacks one more, …, then the second best of each. A beam narrower than the number of tokens in the phrases
    therefore keeps only the most advanced hypotheses.
    """

    def __init__(self, phrases: Sequence[Sequence[RequiredPhrase]], pieces: Sequence[bytes]) -> None:
        """phrases: of each line of the search's input. pieces: text of each id in UTF-8, with a space before a piece
        that begins a word."""
        self.phrases = [list(dict.fromkeys(each)) for each in phrases]
        self.pieces = pieces
        self.continuing = _continuing(tuple(pieces))

    def ban_end_if_missing(self, hypotheses: Hypotheses, logits: Tensor) -> Tensor:
        """Logits processor that bans `</s>` until the target contains its phrases; used by the same search."""
        for row, (target, phrases) in enumerate(self._of_rows(hypotheses)):
            text = decode_pieces(target, self.pieces) if phrases else ""
            if not all(each.phrase.is_in(text) for each in phrases):
                logits[row, END_ID] = -math.inf
        return logits

    def lacking(self, target: Sequence[int], phrases: Sequence[RequiredPhrase]) -> int:
        """Return the number of tokens that a target still lacks.

        It is the length of the shortest spelling of each missing phrase, minus the tokens of one of them that the
        target already ends in.
        """
        text = decode_pieces(target, self.pieces) if phrases else ""
        missing = [each for each in phrases if not each.phrase.is_in(text)]
        saved = (each.size - len(spelling) + self._begun(target, each.phrase, spelling)
                 for each in missing for spelling in each.spellings)
        return sum(each.size for each in missing) - max(saved, default=0)

    def __call__(self, hypotheses: Hypotheses, logits: Tensor, past: Tensor,
                 count: int) -> tuple[Tensor, Tensor, Tensor]:
        sentences, groups, beam = past.shape
        assert groups == 1, "the beam is shared out as a whole"
        _, beams, ids = most_probable(logits, past, count)
        first_rows = beam * torch.arange(sentences, device=past.device)[:, None]
        # Candidates without repetition: the best of each sentence, the best of each hypothesis, and the next tokens of
        # missing phrases.
        considered = dict.fromkeys(zip((beams[:, 0] + first_rows).flatten().tolist(), ids.flatten().tolist(),
                                       strict=True))
        considered |= dict.fromkeys(enumerate(logits.argmax(1).tolist()))
        by_row, completed = list(self._of_rows(hypotheses)), []
        for row, (target, phrases) in enumerate(by_row):
            text = decode_pieces(target, self.pieces) if phrases else ""
            considered |= dict.fromkeys((row, spelling[self._begun(target, each.phrase, spelling)])
                                        for each in phrases if not each.phrase.is_in(text)
                                        for spelling in each.spellings)
            if any(each.phrase.is_in(text) and not each.phrase.is_in(f"{text}x") for each in phrases):
                completed.append(row)
        if completed:
            # Also the best token that ends the phrase's last word, because all the most probable ones may continue it.
            ending = logits[completed].masked_fill(self.continuing.to(logits.device), -math.inf).argmax(1)
            considered |= dict.fromkeys(zip(completed, ending.tolist(), strict=True))
        rows, words = torch.tensor(list(considered), device=logits.device).T
        totals = (logits[rows, words] + past.flatten()[rows]).tolist()
        candidates: list[list[_Candidate]] = [[] for _ in range(sentences)]
        for (row, word), total in zip(considered, totals, strict=True):
            if total > -math.inf:
                target, phrases = by_row[row]
                lacking = self.lacking((*target, word), phrases) if phrases else 0
                candidates[row // beam].append(_Candidate(total, row % beam, word, lacking))
        # Too few candidates are filled up with impossible ones.
        chosen = [[*_in_turns(each)[:count], *[_Candidate(-math.inf, 0, END_ID, 0)] * (count - len(each))]
                  for each in candidates]
        return (past.new_tensor([[[one.total for one in each]] for each in chosen]),
                ids.new_tensor([[[one.beam for one in each]] for each in chosen]),
                ids.new_tensor([[[one.word for one in each]] for each in chosen]))

    def _begun(self, target: Sequence[int], phrase: Phrase, spelling: Sequence[int]) -> int:
        """Return how many of a spelling's first tokens, but not all, the target ends in, at a valid beginning of the
        phrase."""
        spaced = self.pieces[spelling[0]].startswith(b" ")
        for size in range(min(len(spelling) - 1, len(target)), 0, -1):
            before = len(target) - size
            if tuple(target[before:]) == tuple(spelling[:size]) and (
                    spaced or phrase.may_begin_behind(decode_pieces(target[:before], self.pieces))):
                return size
        return 0

    def _of_rows(self, hypotheses: Hypotheses) -> Iterator[tuple[tuple[int, ...], list[RequiredPhrase]]]:
        """Yield the target and the phrases of each row."""
        for line, targets in zip(hypotheses.lines, hypotheses.tokens.tolist(), strict=True):
            for target in targets:
                yield tuple(target), self.phrases[line]


@lru_cache(maxsize=4)
def _continuing(pieces: tuple[bytes, ...]) -> Tensor:
    """Return the mask of ids that continue the previous word, (vocab_size,) bool. Byte pieces are included, because
    they may."""
    texts = (piece.decode(errors="surrogateescape") for piece in pieces)
    return torch.tensor([begins_in_word(text) or "\udc80" <= text[:1] <= "\udcff" for text in texts])


class _Candidate(NamedTuple):
    total: float
    beam: int
    word: int
    lacking: int


def _in_turns(candidates: list[_Candidate]) -> list[_Candidate]:
    """Order candidates round-robin over banks: the best of each bank, starting with the one that lacks the fewest
    tokens, then the second best of each, and so on."""
    ranks: Counter[int] = Counter()
    ranked = []
    for candidate in sorted(candidates, key=lambda candidate: -candidate.total):
        ranked.append((ranks[candidate.lacking], candidate.lacking, candidate))
        ranks[candidate.lacking] += 1
    return [candidate for *_, candidate in sorted(ranked, key=lambda entry: entry[:2])]
