"""Search finds the best of all targets that satisfy a constraint, with their unchanged probabilities."""

import itertools

import numpy as np
import pytest
from lookup import Table, every_translation, translate

from seq2seq.search.beam import NoHypothesis
from seq2seq.search.logits_processors import (
    Phrase,
    decode_pieces,
    forbid_phrases,
    force_prefix,
    min_length,
    no_repeat_ngram,
)
from seq2seq.search.options import Hypotheses
from seq2seq.search.scores import ArrayScores

# The text of each id; 3, 4 and 6 are the words of the table.
PIECES = [b"", b"", b"", b" a", b"r", b"-", b"t"]


def text_of(tokens):
    return b"".join(PIECES[token] for token in tokens).decode()


def repeats(tokens, size):
    ngrams = [tuple(tokens[place:place + size]) for place in range(len(tokens) - size + 1)]
    return len(ngrams) > len(set(ngrams))


def words(text):
    return text.split(" ")


CASES = {
    "at least 0 words": (min_length(0), lambda tokens: True),
    "at least 2 words": (min_length(2), lambda tokens: len(tokens) >= 2),
    "at least 3 words": (min_length(3), lambda tokens: len(tokens) == 3),
    "beginning with nothing": (force_prefix([[]]), lambda tokens: True),
    "beginning with 4 6": (force_prefix([[4, 6]]), lambda tokens: tokens[:2] == [4, 6]),
    "no word twice": (no_repeat_ngram(1), lambda tokens: not repeats(tokens, 1)),
    "no two words twice": (no_repeat_ngram(2), lambda tokens: not repeats(tokens, 2)),
    "no three words twice": (no_repeat_ngram(3), lambda tokens: True),
    "without the word art": (forbid_phrases(["art"], PIECES),
                             lambda tokens: "art" not in words(text_of(tokens))[1:]),
    "without art anywhere": (forbid_phrases(["art"], PIECES, whole_words=False),
                             lambda tokens: "art" not in text_of(tokens)),
    "without ar and t": (forbid_phrases(["ar", "t"], PIECES, whole_words=False),
                         lambda tokens: not any(each in text_of(tokens) for each in ("ar", "t"))),
    "without ART in any casing": (forbid_phrases(["ART"], PIECES, ignore_case=True),
                                  lambda tokens: "art" not in words(text_of(tokens))[1:]),
    "without a a": (forbid_phrases(["a a"], PIECES, whole_words=False),
                    lambda tokens: "a a" not in text_of(tokens)),
}


@pytest.mark.parametrize("name", CASES)
def test_search_finds_the_best_hypotheses_that_satisfy_a_constraint(name):
    constraint, keeps = CASES[name]
    table = Table()
    expected = sorted(((total, tokens) for tokens, total in every_translation(table, 3, 4) if keeps(tokens)),
                      reverse=True)
    (found,) = translate(table, [3], beam_size=40, max_length=4, n_best=40, alpha=0.0, logits_processors=[constraint])
    assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in expected]
    assert [hypothesis.log_probability for hypothesis in found] == pytest.approx([total for total, _ in expected])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_each_line_has_its_own_prefix_independently_of_the_batch(beam_size):
    table, prefixes = Table(end=1.0), [[], [4], [6, 3, 4, 3], [3, 3], []]
    together = translate(table, [2, 3, 5, 7, 11], beam_size=beam_size, max_length=7, n_best=beam_size,
                         logits_processors=[force_prefix(prefixes)])
    for sentence, prefix, expected in zip([2, 3, 5, 7, 11], prefixes, together, strict=True):
        assert all(hypothesis.tokens[:len(prefix)] == prefix for hypothesis in expected)
        (alone,) = translate(table, [sentence], beam_size=beam_size, max_length=7, n_best=beam_size,
                             logits_processors=[force_prefix([prefix])])
        assert alone == expected


@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_ngram_may_be_repeated_inside_a_prefix_and_not_after_it(beam_size):
    prefixes = [[4, 6, 4, 6], []]
    found, free = translate(Table(end=-3.0), [2, 3], beam_size=beam_size, max_length=20,
                            logits_processors=[force_prefix(prefixes), no_repeat_ngram(2, prefixes)])
    (alone,) = translate(Table(end=-3.0), [3], beam_size=beam_size, max_length=20,
                         logits_processors=[no_repeat_ngram(2)])
    assert free == alone
    for hypothesis in found:
        assert hypothesis.tokens[:4] == [4, 6, 4, 6] and not repeats(hypothesis.tokens[2:], 2)
        assert (6, 4) not in itertools.pairwise(hypothesis.tokens[3:])


# Forbidden phrases


def test_a_forbidden_phrase_is_detected_in_every_segmentation():
    pieces = [b"", b"", b"", b" do", b"g", b" dog", b"gs", b" the", b"s", b".", b" dogs", b"\xc3", b"\xa9"]
    constraint = forbid_phrases(["dog", "th\u00e9"], pieces)

    def forbidden(*tokens):
        return {index for index in range(3, len(pieces)) if index not in allowed(constraint, tokens, len(pieces))}

    assert forbidden() == {5}
    assert forbidden(3) == {4, 5}
    assert forbidden(7) == {5}
    assert forbidden(7, 3) == {4, 5}
    assert forbidden(3, 6) == {5}                                               # dogs is another word
    assert forbidden(3, 3) == {4, 5}
    assert allowed(constraint, (10,), len(pieces)) >= {8, 9, 10}
    # What is no word is forbidden behind letters, too.
    marks = forbid_phrases([".", "s."], pieces)
    assert allowed(marks, (5,), len(pieces)) == set(range(len(pieces))) - {9}
    byte_by_byte = forbid_phrases(["\u00e9"], pieces, whole_words=False)
    assert allowed(byte_by_byte, (7, 11), len(pieces)) == set(range(len(pieces))) - {12}
    assert allowed(byte_by_byte, (7,), len(pieces)) == set(range(len(pieces)))


def allowed(constraint, tokens, vocab_size):
    logits = np.zeros((1, vocab_size))
    constraint(Hypotheses(np.array(tokens, np.int64).reshape(1, 1, -1), [0]), ArrayScores(logits))
    return set(np.flatnonzero(np.isfinite(logits[0])).tolist())


def test_forbidden_phrases_match_whole_words_only():
    pieces = [b"", b"", b"", b" p", b"art", b"y", b" art", b" artist", b",", b"i", b"\xe4\xb8\xad"]
    for whole_words, context, expected in [
        (True, (), {4, 6}), (True, (3,), {6}), (True, (8,), {4, 6}), (True, (10,), {6}),
        (False, (), {4, 6, 7}), (False, (3,), {4, 6, 7}),
    ]:
        constraint = forbid_phrases(["art"], pieces, whole_words)
        assert set(range(len(pieces))) - allowed(constraint, context, len(pieces)) == expected, (whole_words, context)


@pytest.mark.parametrize("ignore_case", [False, True])
@pytest.mark.parametrize("whole_words", [False, True])
def test_exactly_the_tokens_that_complete_a_phrase_are_forbidden(whole_words, ignore_case):
    """Byte pieces, marks and capitals included; the reference looks for the phrase in each text."""
    texts = ("a", "e", "\u00e9", " a", " b", "E", "\u0301", "-", " ", "ab", "ae")
    pieces = [b"", b"", b"", *map(str.encode, texts)]
    pieces += [b"\xc3", b"\xa9", b"\xe4\xb8", b"\xad"]
    random = np.random.default_rng(7)
    for phrase in ("ae", "a b", "\u00e9", "b", "a-e", "e\u0301a", "\u4e2d", "A"):
        constraint, searched = forbid_phrases([phrase], pieces, whole_words, ignore_case), \
            Phrase(phrase, whole_words, ignore_case)
        for _ in range(60):
            tokens = tuple(random.integers(3, len(pieces), random.integers(5)).tolist())
            if not searched.is_in(decode_pieces(tokens, pieces)):
                completing = {index for index in range(len(pieces))
                              if searched.is_in(decode_pieces((*tokens, index), pieces))}
                assert set(range(len(pieces))) - allowed(constraint, tokens, len(pieces)) == completing


@pytest.mark.parametrize("phrase", ["x", "y"])
def test_a_forbidden_letter_does_not_forbid_what_follows_a_word(phrase):
    pieces = [b"", b"", b"", b" cat", b" the", b".", b"s", f" {phrase}".encode(), phrase.encode()]
    constraint = forbid_phrases([phrase], pieces, ignore_case=True)
    assert set(range(len(pieces))) - allowed(constraint, (3,), len(pieces)) == {7}


@pytest.mark.parametrize(("text", "phrase", "found"), [
    ("kick", "kick", True), ("a kick-off", "kick", True), ("kicking", "kick", False), ("sidekick", "kick", False),
    ("kicking a kick", "kick", True), ("Kick", "kick", False), ("Z\u00fcriching", "Z\u00fcrich", False),
    ("50%ig", "%", True), ("C++11", "C++", True), ("aC++", "C++", False), ("1980s", "1980", False),
    # Marks belong to the letter before them: the vowel sign of Hindi, an accent, the joiner of Persian.
    ("\u0915\u0940", "\u0915", False), ("cafe\u0301", "cafe", False), ("e\u0301t", "t", False),
    ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc", False), ("\u2764\ufe0fkick", "kick", True),
])
def test_a_phrase_is_in_a_text_as_whole_words(text, phrase, found):
    assert Phrase(phrase).is_in(text) == found
    assert Phrase(phrase, whole_words=False).is_in(text) == (phrase in text)


@pytest.mark.parametrize(("text", "phrase", "found"), [
    ("KICK", "kick", True), ("a Kick.", "kICK", True), ("KICKING", "kick", False),
    ("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c2", True),
    ("STRA\u1e9eE", "stra\u00dfe", True), ("STRASSE", "stra\u00dfe", False), ("\u0130 kick", "KICK", True),
    ("\u0130kick", "KICK", False),
])
def test_case_is_ignored_character_by_character(text, phrase, found):
    assert Phrase(phrase, ignore_case=True).is_in(text) == found
    assert not Phrase(phrase).is_in(text)


def test_a_phrase_is_forbidden_in_any_casing_and_in_whatever_pieces():
    pieces = [b"", b"", b"", b" do", b"g", b" DO", b"G", b"gs", b" Dog", b" \xc3", b"\x9c", b"\xbc"]
    constraint = forbid_phrases(["dog", "\u00fc"], pieces, ignore_case=True)

    def forbidden(*tokens):
        return {index for index in range(3, len(pieces)) if index not in allowed(constraint, tokens, len(pieces))}

    assert forbidden() == {8} and forbidden(3) == forbidden(5) == forbidden(8, 5) == {4, 6, 8}
    assert forbidden(9) == {8, 10, 11}                                          # both cases of \u00fc
    assert allowed(forbid_phrases(["dog"], pieces), (5,), len(pieces)) == set(range(len(pieces)))


# Impossible


def test_constraints_that_leave_no_token_are_reported():
    def nothing(hypotheses, scores):
        for row, line in enumerate(line for line in hypotheses.lines for _ in range(hypotheses.tokens.shape[1])):
            if line in (1, 4):
                scores.logits[row] = float("-inf")

    with pytest.raises(NoHypothesis) as caught:
        translate(Table(), [2, 3, 5, 7, 11], beam_size=3, logits_processors=[nothing])
    assert caught.value.lines == [1, 4]


@pytest.mark.parametrize("first", [0, 1])
def test_nan_logits_are_not_reported_as_a_constraint_error(first):
    class Broken(Table):
        def logits(self, sentence, prefix):
            return super().logits(sentence, prefix) * (float("nan") if len(prefix) >= first else 1)

    with pytest.raises(FloatingPointError):
        translate(Broken(), [2, 3], beam_size=3, logits_processors=[min_length(2)])
