"""Candidate selections (see `options.CandidateSelection`): sampling, diverse beam search, lexical constraints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from seq2seq.search.interface import Continuations, Scores
from seq2seq.search.logits_processors import Phrase, begins_in_word, decode_pieces
from seq2seq.search.options import Hypotheses
from seq2seq.search.sampling import hashed, uniform_numbers_after
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

    def __call__(self, hypotheses: Hypotheses, scores: Scores, past: np.ndarray, count: int) -> Continuations:
        assert past.shape[2] == 1, "each group must consist of one hypothesis"
        numbers = uniform_numbers_after(self._hashes[hypotheses.lines], np.arange(past.shape[1]),
                                        hypotheses.tokens.shape[2])
        ids = scores.sample(numbers.ravel(), self.temperature, self.top_k, self.top_p, self.min_p)
        totals = past + scores.values(np.arange(len(ids)), ids).reshape(past.shape)
        return totals, np.zeros(past.shape, np.int64), ids.reshape(past.shape)

    @cached_property
    def _hashes(self) -> np.ndarray:
        """Hash of the seed and the key of each sentence, (sentences, 1)."""
        return hashed(np.zeros((len(self.keys), 1), np.uint64), self.seed, *self.keys.T[:, :, None])


@dataclass(frozen=True)
class DiverseBeams:
    """Diverse beam search (Vijayakumar et al. 2016, arXiv:1610.02424, equation 7, with Hamming diversity).

    In each step, the groups of the beam select their candidates one after another. For each time that an earlier group
    selected a token in this step, the token's score is reduced by `strength`. The penalty affects only the selection,
    not the log-probability of the hypothesis.
    """

    strength: float

    def __call__(self, hypotheses: Hypotheses, scores: Scores, past: np.ndarray, count: int) -> Continuations:
        sentences, groups, size = past.shape
        rows = np.arange(sentences * groups * size).reshape(past.shape)
        # For each sentence, how often earlier groups have selected each token in this step.
        times_selected: list[Counter[int]] = [Counter() for _ in range(sentences)]
        selected = []
        for group in range(groups):
            pairs = [(row, token) for sentence, times in enumerate(times_selected)
                     for row in rows[sentence, group].tolist() for token in times]
            penalised_rows, penalised_ids = np.array(pairs, np.int64).reshape(-1, 2).T
            kept = scores.values(penalised_rows, penalised_ids)
            penalties = [times[token] for times in times_selected for _ in range(size) for token in times]
            scores.assign(penalised_rows, penalised_ids,
                          kept - (self.strength * np.array(penalties)).astype(kept.dtype))
            best, beams, ids = scores.best_of_rows(rows[:, group], past[:, group], count)   # (sentences, candidates)
            scores.assign(penalised_rows, penalised_ids, kept)
            totals = (np.take_along_axis(past[:, group], beams, 1)
                      + scores.values(np.take_along_axis(rows[:, group], beams, 1), ids))
            totals[best == -math.inf] = -math.inf                       # surplus candidates of small vocabularies
            selected.append((totals, beams, ids))
            # `count` is twice the group size. Only the first half of the candidates count as selected.
            for times, chosen, log_probabilities in zip(times_selected, ids.tolist(), totals, strict=True):
                possible = log_probabilities[: count // 2] > -math.inf
                times.update(token for token, is_possible in zip(chosen, possible, strict=False) if is_possible)
        totals, beams, ids = (np.stack(parts, 1) for parts in zip(*selected, strict=True))
        return totals, beams, ids


@dataclass(frozen=True)
class RequiredPhrase:
    """Phrase that the text of a finished target must contain, in any segmentation.

    spellings: token sequences that spell the phrase; at least one, none empty. Search adds their tokens as candidates.
    """

    phrase: Phrase
    spellings: tuple[tuple[int, ...], ...]

    @cached_property
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
        self.phrases = [tuple(dict.fromkeys(of_sentence)) for of_sentence in phrases]
        self.pieces = pieces
        self.continues_word = _continues_word(tuple(pieces))
        # Progress of the hypotheses of the last step, in the order of the beam, for each line that has phrases.
        self.progress: dict[int, list[Progress]] = {}

    def ban_end_if_missing(self, hypotheses: Hypotheses, scores: Scores) -> None:
        """Set the logit of `</s>` to -inf for hypotheses that lack a required phrase.

        `SearchOptions` must have both this object as `candidate_selection` and this method as a logits processor.
        """
        self.progress = {line: self._progress_of(line, list(map(tuple, targets)))
                         for line, targets in zip(hypotheses.lines, hypotheses.tokens.tolist(), strict=True)
                         if self.phrases[line]}
        beam = hypotheses.tokens.shape[1]
        if lacking := [sentence * beam + index for sentence, line in enumerate(hypotheses.lines)
                       for index, progress in enumerate(self.progress.get(line, [])) if progress.missing]:
            scores.assign(np.array(lacking), END_ID, -math.inf)

    def __call__(self, hypotheses: Hypotheses, scores: Scores, past: np.ndarray, count: int) -> Continuations:
        sentences, groups, beam = past.shape
        assert groups == 1, "required phrases need a beam of one group"
        best = scores.best_of_rows(np.arange(sentences * beam).reshape(sentences, beam), past[:, 0], count)
        # For a sentence whose hypotheses keep all phrases whatever follows, the best candidates are the result.
        searched = {sentence: self.progress[line] for sentence, line in enumerate(hypotheses.lines)
                    if any(progress.unsettled for progress in self.progress.get(line, []))}
        if searched:
            self._select(searched, scores, past, best)
        totals, beams, ids = best
        return totals[:, None], beams[:, None], ids[:, None]

    def _select(self, searched: dict[int, list[Progress]], scores: Scores, past: np.ndarray, best: Continuations
                ) -> None:
        """Replace the best continuations of some sentences by those of the banks. searched: by index of the sentence,
        the progress of its hypotheses."""
        totals, beams, ids = best
        beam, count = past.shape[2], totals.shape[1]
        chosen, by_row = list(searched), {row: progress for sentence, rows in searched.items()
                                          for row, progress in enumerate(rows, sentence * beam)}
        # The candidates are pairs (row, id): the best ones of each sentence, the best one of each hypothesis, and the
        # next tokens of missing phrases. A dict keeps each pair once, in this order.
        rows = beams[chosen] + beam * np.array(chosen)[:, None]
        considered = dict.fromkeys(zip(rows.ravel().tolist(), ids[chosen].ravel().tolist(), strict=True))
        considered |= dict.fromkeys(zip(by_row, scores.best_ids(np.array(list(by_row))).tolist(), strict=True))
        for row, progress in by_row.items():
            considered |= dict.fromkeys((row, next_id) for next_id in progress.next_ids)
        if completed := [row for row, progress in by_row.items() if progress.completed]:
            # If a phrase was just completed, the most probable tokens may all continue its last word, and then the
            # phrase would be missing again. The best token that continues no word is therefore a candidate, too.
            ending = scores.best_ids(np.array(completed), self.continues_word)
            considered |= dict.fromkeys(zip(completed, ending.tolist(), strict=True))
        all_rows, next_ids = np.array(list(considered)).T
        by_sentence: dict[int, list[_Candidate]] = {sentence: [] for sentence in searched}
        for (row, next_id), total in zip(considered, (scores.values(all_rows, next_ids) + past.ravel()[all_rows]
                                                      ).tolist(), strict=True):
            if total > -math.inf:
                by_sentence[row // beam].append(
                    _Candidate(total, row % beam, next_id, by_row[row].missing_after(next_id)))
        for sentence, candidates in by_sentence.items():
            # If a sentence has fewer than `count` candidates, candidates with a total of -inf are appended.
            selected = [*_round_robin(candidates)[:count],
                        *[_Candidate(-math.inf, 0, END_ID, 0)] * (count - len(candidates))]
            totals[sentence], beams[sentence], ids[sentence], _ = zip(*selected, strict=True)

    def _progress_of(self, line: int, targets: Sequence[tuple[int, ...]]) -> list[Progress]:
        """Return the progress of the hypotheses of a line, from that of the hypotheses that they continue."""
        before = {progress.target: progress.unsettled for progress in self.progress.get(line, [])}
        return [Progress(target, before.get(target[:-1], self.phrases[line]), self.pieces) for target in targets]


class Progress:
    """Required phrases of a sentence that one of its targets has and lacks.

    missing: phrases that its text lacks. unsettled: these phrases, and those that the next token may make missing
    again. next_ids: ids that continue a spelling of a missing phrase. completed: True = the text ends with a phrase
    that the next token may make missing again.
    """

    def __init__(self, target: tuple[int, ...], phrases: Sequence[RequiredPhrase], pieces: Sequence[bytes]) -> None:
        """phrases: all phrases of the sentence, or those that are unsettled in the target without its last token."""
        self.target, self.pieces, self.text = target, pieces, decode_pieces(target, pieces)
        # The next token may complete the character with which the text ends.
        self.incomplete = "\udc80" <= self.text[-1:] <= "\udcff"
        self.missing, self.unsettled, self.next_ids, self.completed = [], [], [], False
        # For each unsettled phrase and next id, the number of tokens that the phrase lacks less than its whole size.
        self.saved: list[dict[int, int]] = []
        for required in phrases:
            if is_in := required.phrase.is_in(self.text):
                before_word = required.phrase.is_in(f"{self.text}x")
                self.completed |= not before_word
                if before_word and not self.incomplete:
                    continue
            else:
                self.missing.append(required)
            self.unsettled.append(required)
            saved: dict[int, int] = {}
            for spelling in required.spellings:
                sizes = self._spelled_tokens(required.phrase, spelling)
                if not is_in:
                    self.next_ids.append(spelling[sizes[0] if sizes else 0])
                for size in sizes:
                    if size + 1 < len(spelling):
                        number = required.size - len(spelling) + size + 1
                        saved[spelling[size]] = max(number, saved.get(spelling[size], 0))
            self.saved.append(saved)

    def missing_after(self, next_id: int) -> int:
        """Return the number of tokens of required phrases that the target lacks if this token follows.

        Each missing phrase counts with the length of its shortest spelling. If the target ends with the beginning of a
        spelling of a missing phrase, this phrase counts with the rest of the spelling. Of several such phrases, only
        the one that saves the most tokens counts in this way.
        """
        if self.incomplete:
            text = decode_pieces((*self.target, next_id), self.pieces)
        else:
            text = self.text + self.pieces[next_id].decode(errors="surrogateescape")
        missing = most_saved = 0
        for required, saved in zip(self.unsettled, self.saved, strict=True):
            # A phrase that is unsettled before the last token ends with it, or where it begins.
            begin = 0 if self.incomplete else max(0, len(self.text) - len(required.phrase.text))
            if not required.phrase.is_in(text, begin):
                missing += required.size
                most_saved = max(most_saved, saved.get(next_id, 0))
        return missing - most_saved

    def _spelled_tokens(self, phrase: Phrase, spelling: Sequence[int]) -> list[int]:
        """Return the lengths of the proper prefixes of the spelling with which the target ends, longest first.

        A prefix counts only if the phrase may begin where the prefix begins: the spelling starts with a space, or
        `Phrase.may_begin_after` allows the text before the prefix.
        """
        spaced, end = self.pieces[spelling[0]].startswith(b" "), len(self.target)
        return [size for size in range(min(len(spelling) - 1, end), -1, -1)
                if self.target[end - size :] == spelling[:size] and (
                    spaced or phrase.may_begin_after(decode_pieces(self.target[: end - size], self.pieces)))]


@lru_cache(maxsize=4)
def _continues_word(pieces: tuple[bytes, ...]) -> np.ndarray:
    """Return a mask of the vocabulary, (vocab_size,) bool. True = the piece may continue the word before it.

    Such a piece begins with a letter, a digit, a combining mark or an incomplete UTF-8 character.
    """
    texts = (piece.decode(errors="surrogateescape") for piece in pieces)
    return np.array([begins_in_word(text) or "\udc80" <= text[:1] <= "\udcff" for text in texts])


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
