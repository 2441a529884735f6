"""Required phrases, diverse groups and samples: against brute force, their definitions and their probabilities."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from lookup import WORDS, Table, every_translation, translate

from seq2seq.search.candidate_selection import DiverseBeams, Progress, RequiredPhrase, RequiredPhrases, Sampling
from seq2seq.search.logits_processors import Phrase, decode_pieces, force_prefix, min_length
from seq2seq.search.scores import ArrayScores
from seq2seq.tokenizers.tokenizer import END_ID


def holds(tokens, phrase):
    return any(tokens[begin:begin + len(phrase)] == list(phrase) for begin in range(len(tokens)))


# The text of each id; 3, 4 and 6 are the words of the table. Here each is a word.
A_WORD_EACH = [b"", b"", b"", b" one", b" two", b"-", b" six"]


def of_words(phrase, pieces=A_WORD_EACH):
    return RequiredPhrase(Phrase(decode_pieces(phrase, pieces).strip()), (tuple(phrase),))


def with_phrases(table, sentences, phrases, constraints=(), pieces=A_WORD_EACH, **options):
    """Search with required phrases. phrases: for each sentence, as ids or as `RequiredPhrase`s."""
    required = RequiredPhrases([[each if isinstance(each, RequiredPhrase) else of_words(each) for each in of_line]
                                for of_line in phrases], pieces)
    return translate(table, sentences, candidate_selection=required,
                     logits_processors=[required.ban_end_if_missing, *constraints], **options)


@pytest.mark.parametrize("phrases", [[(4,), (6,)], [(6, 6)], [(3, 4), (4, 6)], [(3, 4, 3)], [], [(4, 4), (4,)]],
                         ids=str)
def test_constrained_search_finds_the_best_hypotheses_with_all_phrases(phrases):
    table = Table()
    expected = sorted(((total, tokens) for tokens, total in every_translation(table, 3, 5)
                       if all(holds(tokens, phrase) for phrase in phrases)), reverse=True)
    (found,) = with_phrases(table, [3], [phrases], beam_size=121, max_length=5, n_best=121, alpha=0.0)
    assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in expected]
    assert [hypothesis.log_probability for hypothesis in found] == pytest.approx([total for total, _ in expected])


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("end", [-2.0, 3.0])
def test_any_beam_width_finds_phrases_that_fit(beam_size, end):
    phrases = [[(4, 4, 3)], [(3,), (6, 6), (4, 3)], [], [(6, 3, 6, 4, 3)]]
    for hypotheses, each in zip(with_phrases(Table(end=end), [2, 3, 5, 7], phrases, beam_size=beam_size, max_length=6,
                                             n_best=beam_size), phrases, strict=True):
        for hypothesis in hypotheses:
            assert len(hypothesis.tokens) <= 5 and all(holds(hypothesis.tokens, phrase) for phrase in each)


def test_lines_without_phrases_are_not_affected_by_lines_with_phrases():
    table, sentences = Table(end=0.5), list(range(13))
    phrases = [[(4, 6)] if sentence % 3 == 0 else [(3,), (6, 6)] if sentence % 3 == 1 else [] for sentence in sentences]
    options = {"beam_size": 3, "max_length": 7, "n_best": 3}
    together = with_phrases(table, sentences, phrases, **options)
    for sentence in sentences:
        assert with_phrases(table, [sentence], [phrases[sentence]], **options) == [together[sentence]]
    plain = translate(table, sentences, **options)
    assert [together[sentence] for sentence in sentences[2::3]] == plain[2::3]


def test_phrases_can_begin_within_a_prefix():
    table = Table()
    expected = max((total, tokens) for tokens, total in every_translation(table, 3, 5)
                   if tokens[:2] == [6, 4] and holds(tokens, (4, 3)) and len(tokens) == 4)
    ((found,),) = with_phrases(table, [3], [[(4, 3)]], [force_prefix([[6, 4]]), min_length(4)], beam_size=121,
                               max_length=5, alpha=0.0)
    assert found.tokens == expected[1]


def test_missing_tokens_are_counted_for_missing_and_partial_phrases():
    phrases = [of_words((3, 4, 3, 6)), of_words((6, 6))]
    def missing(target):
        return Progress(target[:-1], phrases, A_WORD_EACH).missing_after(target[-1])

    assert [missing(target) for target in ((4,), (3,), (3, 4), (3, 4, 3), (3, 4, 3, 4), (3, 4, 3, 6))] \
        == [6, 5, 4, 3, 4, 1]                                                   # 3 4 3 6 begins 6 6, too
    assert missing((6, 6, 4, 3)) == 3
    assert missing((3, 4, 3, 6, 6)) == 0


@pytest.mark.parametrize("ignore_case", [False, True])
@pytest.mark.parametrize("whole_words", [False, True])
def test_missing_tokens_equal_those_of_the_whole_text(whole_words, ignore_case):
    """Tokens are added one by one, byte pieces and marks included; the reference decodes each target."""
    pieces = [b"", b"", b"", *(text.encode() for text in (" a", "b", "B", "\u0301", "-", " ", "\u4e2d")),
              b"\xc3", b"\xbc", b"\xe4\xb8", b"\xad"]
    random, found = np.random.default_rng(5), Counter()
    for spelling in [(3, 4), (4,), (4, 6), (10, 11), (9,), (12, 13), (4, 7, 4)] * 8:
        phrase = RequiredPhrase(Phrase(decode_pieces(spelling, pieces).strip(), whole_words, ignore_case), (spelling,))
        target, unsettled = (), [phrase]
        for next_id in random.integers(3, len(pieces), 23).tolist() + [*spelling, 4, *spelling, 7, 6, 4]:
            progress = Progress(target, unsettled, pieces)
            target, unsettled = (*target, next_id), progress.unsettled
            is_in = phrase.phrase.is_in(decode_pieces(target, pieces))
            found[is_in] += 1
            assert (progress.missing_after(next_id) == 0) == is_in
    assert min(found.values()) > 300


# Whole words

PARTS_OF_WORDS = [b"", b"", b"", b" a", b"r", b"-", b" ar"]
WITH_A_MARK = [b"", b"", b"", b" a", b"r", b"-", b"-"]
IN_BYTES = [b"", b"", b"", b" a", b"\xc3", b"-", b"\xbc"]                       # \u00fc is 4 6
IN_CASES = [b"", b"", b"", b" a", b" A", b"-", b"r"]
WITHOUT_SPACES = [b"", b"", b"", b"a", b" ", b"-", b"r"]                        # of a tokenizer that adds none


def contains(text, phrase, ignore_case=False):
    """Reference for whole words with a regular expression."""
    before, after = r"(?<!\w)" * phrase[0].isalnum(), r"(?!\w)" * phrase[-1].isalnum()
    return bool(re.search(f"{before}{re.escape(phrase)}{after}", text, re.IGNORECASE if ignore_case else 0))


@pytest.mark.parametrize(("pieces", "phrase", "spellings", "ignore_case"), [
    (PARTS_OF_WORDS, "a", [(3,)], False), (PARTS_OF_WORDS, "a ar", [(3, 6)], False),
    (PARTS_OF_WORDS, "arr", [(3, 4, 4), (6, 4)], False), (WITH_A_MARK, "r", [(4,)], False),
    (WITH_A_MARK, "-", [(6,)], False), (IN_BYTES, "a\u00fc", [(3, 4, 6)], False),
    (IN_CASES, "AR", [(3, 6), (4, 6)], True),
    (IN_CASES, "a", [(3,)], False), (WITHOUT_SPACES, "ar", [(3, 6), (4, 3, 6)], False),
], ids=str)
def test_constrained_search_finds_phrases_as_whole_words(pieces, phrase, spellings, ignore_case):
    table, required = Table(), RequiredPhrase(Phrase(phrase, ignore_case=ignore_case), tuple(spellings))
    every = [(total, tokens, b"".join(pieces[token] for token in tokens).decode(errors="replace"))
             for tokens, total in every_translation(table, 3, 5)]
    expected = [tokens for _, tokens in sorted(
        ((total, tokens) for total, tokens, text in every if contains(text, phrase, ignore_case)), reverse=True)]
    for beam_size in (1, 2, 5, 121):
        (found,) = with_phrases(table, [3], [[required]], pieces=pieces, beam_size=beam_size, max_length=5,
                                n_best=beam_size, alpha=0.0)
        targets = [hypothesis.tokens for hypothesis in found]
        assert targets == expected if beam_size == 121 else targets[0] in expected


def test_a_phrase_continued_by_a_word_part_counts_as_missing():
    class Continuing(Table):
        """Model that almost certainly continues 3, " a", with 4, "r", and then ends."""

        def logits(self, sentence, prefix):
            row = super().logits(sentence, prefix)
            row[{3: 4, 4: END_ID}.get(prefix[-1] if prefix else 0, 3)] += 20.0
            return row

    for beam_size in (1, 2, 5):
        ((free,),) = translate(Continuing(), [1], beam_size=beam_size, max_length=7)
        assert decode_pieces(free.tokens, PARTS_OF_WORDS) == " ar"
        ((found,),) = with_phrases(Continuing(), [1], [[of_words((3,), PARTS_OF_WORDS)]], pieces=PARTS_OF_WORDS,
                                   beam_size=beam_size, max_length=7)
        assert "a" in decode_pieces(found.tokens, PARTS_OF_WORDS).split()


# DiverseBeams groups


def test_diverse_groups_larger_than_the_vocabulary_have_no_further_candidates():
    """The last token was a candidate again and again."""
    scores = ArrayScores(np.tile(np.arange(7.0), (2, 1))).log_softmax()
    totals, _, ids = DiverseBeams(0.5)(None, scores, np.zeros((1, 2, 1)), 12)
    for group in range(2):
        possible = totals[0, group] > -np.inf
        assert sorted(ids[0, group][possible].tolist()) == list(range(7))


def plain_diverse_search(table, sentence, groups, size, strength, max_length):
    """Reference diverse search: the definition, one sentence and one candidate at a time. Returns the finished targets
    of each group, best first."""
    beams, finished = [[([], 0.0)] for _ in range(groups)], [[] for _ in range(groups)]
    for length in range(1, max_length + 1):
        chosen = Counter()
        for group in range(groups):
            if len(finished[group]) >= size:                                    # its hypotheses end here
                continue
            possible = [END_ID] if length == max_length else [END_ID, *WORDS]
            candidates = sorted(
                ((total + (own := table.log_probabilities(sentence, tokens)[word]) - strength * chosen[word],
                  [*tokens, word], total + own) for tokens, total in beams[group] for word in possible),
                key=lambda candidate: -candidate[0])[:2 * size]
            finished[group] += [(total, tokens[:-1]) for _, tokens, total in candidates[:size] if tokens[-1] == END_ID]
            beams[group] = [(tokens, total) for _, tokens, total in candidates if tokens[-1] != END_ID][:size]
            chosen.update(tokens[-1] for _, tokens, _ in candidates[:size])
        if all(len(each) >= size for each in finished):
            break
    return sorted((entry for each in finished for entry in each), reverse=True)[:groups * size]


@pytest.mark.parametrize(("groups", "size", "strength", "end"), [
    (2, 1, 2.0, -1.0), (2, 2, 0.3, 1.0), (3, 2, 2.0, 1.0), (5, 1, 0.3, -1.0)])
def test_diverse_search_follows_its_definition(groups, size, strength, end):
    table, beam_size = Table(end=end), groups * size
    for sentence in range(7):
        (found,) = translate(table, [sentence], beam_size=beam_size, groups=groups, n_best=beam_size,
                             candidate_selection=DiverseBeams(strength), max_length=5, alpha=0.0)
        expected = plain_diverse_search(table, sentence, groups, size, strength, 5)
        assert [hypothesis.score for hypothesis in found] == pytest.approx([total for total, _ in expected])
        assert [hypothesis.tokens for hypothesis in found] == [tokens for _, tokens in expected]


def test_one_group_is_plain_beam_search_and_so_is_each_group_without_strength():
    table, sentences = Table(), list(range(11))
    plain = translate(table, sentences, beam_size=3, n_best=3)
    assert translate(table, sentences, beam_size=3, n_best=3, candidate_selection=DiverseBeams(0.7)) == plain
    twice = translate(table, sentences, beam_size=6, n_best=6, groups=2, candidate_selection=DiverseBeams(0.0))
    assert translate(table, sentences, beam_size=6, n_best=6, groups=2) == twice
    assert [each[::2] for each in twice] == [each[1::2] for each in twice] == plain


# Samples


def samples(table, sentences, number, lines=None, seed=1, max_length=4, **options):
    keys = np.array([[line, 0] for line in (sentences if lines is None else lines)])
    narrow = {name: options.pop(name) for name in ("temperature", "top_k", "top_p", "min_p") if name in options}
    return translate(table, sentences, beam_size=number, groups=number, n_best=number, max_length=max_length,
                     candidate_selection=Sampling(seed, keys, **narrow), alpha=0.0, **options)


def test_targets_are_drawn_as_often_as_they_are_probable():
    """Targets of at most two tokens are sampled 2,003 times, for one line and for many lines."""
    table = Table()
    every = list(every_translation(table, 3, 3))
    # What is banned, and what is too long, leaves its share to the others in each step.
    probabilities = {}
    for tokens, _ in every:
        product = 1.0
        for place, word in enumerate([*tokens, END_ID]):
            possible = [END_ID] if place == 2 else [END_ID, *WORDS]
            row = np.exp(table.log_probabilities(3, tokens[:place]))
            product *= row[word] / row[possible].sum()
        probabilities[tuple(tokens)] = product
    assert len(every) == 13 and sum(probabilities.values()) == pytest.approx(1)
    (as_samples,) = samples(table, [3], 2003, max_length=3)
    as_lines = [found for found, in samples(table, [3] * 2003, 1, range(2003), max_length=3)]
    for found in (as_samples, as_lines):
        counts = Counter(tuple(hypothesis.tokens) for hypothesis in found)
        assert counts.keys() <= probabilities.keys()
        statistic = sum((counts[tokens] - 2003 * p) ** 2 / (2003 * p) for tokens, p in probabilities.items())
        assert statistic < 32.909                                               # 0.999 quantile, 12 degrees of freedom
        by_tokens = {tuple(tokens): total for tokens, total in every}
        assert all(hypothesis.log_probability == pytest.approx(by_tokens[tuple(hypothesis.tokens)])
                   for hypothesis in found[:101])


def test_samples_are_decided_by_seed_line_and_number_alone():
    table, sentences = Table(end=-1.0), list(range(5))
    together = samples(table, sentences, 5, max_length=11)
    assert samples(table, sentences[::-1], 5, max_length=11)[::-1] == together
    for sentence in sentences:
        assert samples(table, [sentence], 5, max_length=11) == [together[sentence]]
        (fewer,) = samples(table, [sentence], 2, max_length=11)
        assert all(hypothesis in together[sentence] for hypothesis in fewer)
    assert samples(table, sentences, 5, max_length=11, seed=2) != together
    assert samples(table, sentences, 5, sentences[::-1], max_length=11) != together
    # The same sentence on two lines is drawn twice.
    first, second = samples(table, [3, 3], 5, [0, 1], max_length=11)
    assert first != second


def test_samples_narrowed_to_one_word_are_greedy():
    table, sentences = Table(), list(range(11))
    greedy = translate(table, sentences, beam_size=1, alpha=0.0, max_length=7)
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-4}):
        found = samples(table, sentences, 1, max_length=7, **narrow)
        assert [hypothesis.tokens for (hypothesis,) in found] == [hypothesis.tokens for (hypothesis,) in greedy]
        assert [hypothesis.log_probability for (hypothesis,) in found] \
            == pytest.approx([hypothesis.log_probability for (hypothesis,) in greedy])


def test_samples_keep_constraints():
    for found in samples(Table(end=1.0), list(range(7)), 11, max_length=7, logits_processors=[min_length(3)]):
        assert len(found) == 11
        for hypothesis in found:
            assert 3 <= len(hypothesis.tokens) <= 6 and set(hypothesis.tokens) <= set(WORDS)
            assert math.isfinite(hypothesis.score)
    assert len({tuple(hypothesis.tokens) for hypothesis in found}) > 5
