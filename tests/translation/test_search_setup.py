"""Every option of `decoding` has its documented effect in the translator, independently of the other lines."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import math
import os
import re
import signal

import numpy as np
import pytest
import sentencepiece
import torch
from random_models import ENGLISH, GERMAN, recipe_text, save_random_model, trained_tokenizers

from seq2seq.data.batching import EncodedSide
from seq2seq.errors import CheckpointError, OptionError, RequestError, UserError
from seq2seq.inference.eager import EagerEngine
from seq2seq.recipe import DecodingSection
from seq2seq.search.minimum_bayes_risk import expected_utilities
from seq2seq.search.options import Hypotheses
from seq2seq.search.scores import ArrayScores
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import END_ID, Tokenizer, Tokenizers
from seq2seq.tokenizers.whole_words import Words
from seq2seq.translation import worker_processes
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.search_setup import SearchSetup
from seq2seq.translation.translator import Translator
from seq2seq.translation.word_confidence import log_probabilities, words_of
from seq2seq.translation.worker_processes import TranslatorPool

RECIPE = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 2, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 6, max_length_ratio: 0.3, max_length_offset: 4")
OF_A_LANGUAGE_MODEL = """\
name: speaker
languages: {target: en}
data: {train: [{text: train.en}], valid: {text: test.en}, cleaning: {max_pieces: 29}}
tokenizer: {vocab_size: 283}
model: {type: language_model, d_model: 12, decoder_layers: 2, num_heads: 2, feed_forward: 7, max_positions: 31}
training: {best_metric: loss}
"""
LONG = "Der Hund läuft. " * 11 + "Die Katze schläft."
LINES = [*GERMAN[:3], "", "Der Hund läuft im Haus. Die Katze schläft.", " \t", GERMAN[0]]


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return trained_tokenizers(RECIPE)


def bundle(place, tokenizers, seed=5, text=RECIPE):
    """Model with random weights."""
    return save_random_model(place, text, tokenizers, seed, noise=0.12)


@pytest.fixture(scope="module")
def places(tokenizers, tmp_path_factory):
    """Two models with the same vocabulary."""
    directory = tmp_path_factory.mktemp("models")
    return [bundle(directory / f"model{seed}", tokenizers, seed) for seed in (5, 7)]


@pytest.fixture(scope="module")
def speaker(tokenizers, tmp_path_factory):
    """Language model with the vocabulary of the translation models."""
    return bundle(tmp_path_factory.mktemp("speakers") / "speaker", tokenizers, 11, OF_A_LANGUAGE_MODEL)


def in_double(translator: Translator) -> Translator:
    def engine_in_double(engine):
        return EagerEngine(copy.deepcopy(engine.model).double(), "fp32", torch.device(translator.device))

    return dataclasses.replace(
        translator, engine=engine_in_double(translator.engine),
        other_engines=tuple(map(engine_in_double, translator.other_engines)),
        language_model=translator.language_model and engine_in_double(translator.language_model))


@pytest.fixture(scope="module")
def translator(places) -> Translator:
    return Translator.load(places[0], device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def exact(translator) -> Translator:
    return in_double(translator)


@pytest.fixture(scope="module")
def joined(places, speaker) -> Translator:
    """Translator of an ensemble with fusion."""
    return in_double(Translator.load(places[0], "cpu", "fp32", ensemble=[places[1]], fusion=speaker))


OPTIONS = {
    "samples": {"sampling": True, "n_best": 3, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01},
    "one sample": {"sampling": True},
    "diverse": {"diverse_groups": 3, "diverse_strength": 2.0, "n_best": 4},
    "constraints": {"no_repeat_ngram": 1, "min_length": 3, "max_length": 7, "forbid": ["dog", "e"], "n_best": 2},
    "coverage": {"coverage_penalty": 0.3, "n_best": 3},
    "best of the beam": {"mbr": 5, "n_best": 2},
    "best of samples": {"mbr": 7, "sampling": True},
    "words": {"word_confidence": True, "n_best": 2},
    "all that goes together": {"sampling": True, "mbr": 5, "top_p": 0.9, "no_repeat_ngram": 2, "min_length": 2,
                               "forbid": ["cat"], "coverage_penalty": 0.1, "word_confidence": True},
}


@pytest.mark.parametrize(("name", "models"), [
    *(pytest.param(name, "exact", marks=[] if name in ("samples", "constraints") else pytest.mark.slow)
      for name in OPTIONS),
    pytest.param("diverse", "joined", marks=pytest.mark.slow), ("all that goes together", "joined")])
def test_samples_do_not_depend_on_the_batch(name, models, request):
    translator, options = request.getfixturevalue(models), OPTIONS[name]
    together = translator.translate(LINES, **options)
    numbers = range(len(LINES))
    others = {
        "small batches": translator.translate(LINES, batch_tokens=37, **options),
        "alone": [translator.translate([Source(line, number=number)], **options)[0]
                  for number, line in enumerate(LINES)],
        "backwards": translator.translate([Source(LINES[number], number=number) for number in numbers[::-1]],
                                          **options)[::-1],
        "as a stream": list(translator.translate_stream(iter(LINES), 5, **options)),
    }
    for way, found in others.items():
        for number, (expected, other) in enumerate(zip(together, found, strict=True)):
            assert [one.text for one in other] == [one.text for one in expected], (way, number)
            assert [one.score for one in other] == pytest.approx([one.score for one in expected], abs=1e-6)
            for one, same in zip(other, expected, strict=True):
                assert [word.text for word in one.words] == [word.text for word in same.words]
                assert [word.confidence for word in one.words] \
                    == pytest.approx([word.confidence for word in same.words], abs=1e-6)


def test_in_fp32_samples_are_the_same_in_batches_of_any_size(translator):
    expected = translator.translate(LINES * 3, sampling=True, n_best=2)
    for batch_tokens in (11, 101, 1009):
        found = translator.translate(LINES * 3, sampling=True, n_best=2, batch_tokens=batch_tokens)
        assert [[one.text for one in each] for each in found] == [[one.text for one in each] for each in expected]


@pytest.fixture(scope="module")
def pool(places):
    with pytest.MonkeyPatch.context() as patch:                                 # threads: see test_int8.py
        patch.setattr(worker_processes, "NativeEngine", type(None))
        pool = TranslatorPool(places[0], workers=2, device="cpu", precision="fp32")
    with pool:
        yield pool


def test_workers_continue_after_a_request_that_is_refused(pool, exact):
    impossible = Source(GERMAN[0], required=("dog",))
    for _ in range(2):
        with pytest.raises(RequestError, match="line 1: "):
            list(pool.translate_stream([impossible, *GERMAN[1:]], forbid=["dog"]))
    found = list(pool.translate_stream(GERMAN))
    assert [one.text for one, *_ in found] == [one.text for one, *_ in exact.translate(GERMAN)]


@pytest.mark.slow
@pytest.mark.usefixtures("workers_are_processes")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=str)
def test_the_death_of_a_worker_is_reported_with_its_signal_and_lines(places, number):
    with TranslatorPool(places[0], workers=1, device="cpu", precision="fp32") as pool:
        process, = pool.processes.values()
        os.kill(process.pid, number)
        process.join()
        with pytest.raises(UserError, match=rf"{number.name} at lines 3 to 4"):
            pool.translate([Source(line, number=index) for index, line in enumerate(GERMAN[:2], start=2)])


def test_workers_draw_the_same_samples_as_one_translator(pool, translator):
    requests = [Source(line, prefix="the" if number % 2 else "") for number, line in enumerate(LINES * 2)]
    expected = list(translator.translate_stream(requests, sampling=True, n_best=2))
    found = list(pool.translate_stream(requests, 7, sampling=True, n_best=2))
    assert [[one.text for one in each] for each in found] == [[one.text for one in each] for each in expected]


# Samples


def test_samples_of_a_line_differ_and_so_do_those_of_its_copies(exact):
    first, second = exact.translate(["ein Hund läuft"] * 2, sampling=True, n_best=5)
    assert len(first) == 5 and len({one.text for one in first}) > 1
    assert [one.text for one in first] != [one.text for one in second]
    (alone,) = exact.translate(["ein Hund läuft"], sampling=True, n_best=5, seed=1)
    assert [one.text for one in alone] == [one.text for one in first]
    assert [one.score for one in alone] == pytest.approx([one.score for one in first], abs=1e-5)    # batches round sums
    assert exact.translate(["ein Hund läuft"], sampling=True, n_best=5, seed=2) != [first]


def test_a_sample_has_the_probability_that_the_model_gives_it(exact, monkeypatch):
    (found,) = exact.translate(["ein Hund läuft"], sampling=True, n_best=11, temperature=0.5, top_k=7,
                               word_confidence=True)
    (plain,) = exact.translate(["ein Hund läuft"], sampling=True, n_best=11, temperature=0.5, top_k=7)
    assert [one.log_probability for one in found] == [one.log_probability for one in plain]
    assert len({one.log_probability for one in found}) > 3 and max(one.log_probability for one in found) < -5


# Constraints


def test_prefixes_apply_only_to_their_own_lines(exact):
    prefixes = ["a dog", "", "  the cat runs ", "x \U0001f600"]
    requests = [Source(line, prefix=prefix) for line, prefix in zip(GERMAN, prefixes, strict=True)]
    for options in ({"n_best": 3}, {"beam_size": 1}, {"sampling": True}, {"diverse_groups": 2, "n_best": 3}):
        found = exact.translate(requests, **options)
        for prefix, each in zip(prefixes, found, strict=True):
            assert all(one.text.startswith(prefix.strip()) for one in each)
        (alone,) = exact.translate([Source(GERMAN[1], number=1)], **options)
        assert [one.text for one in alone] == [one.text for one in found[1]]


def test_the_prefix_of_a_long_line_applies_to_its_first_part(exact):
    (found,), = exact.translate([Source(LONG, prefix="the dog")])
    assert found.parts > 3 and found.text.startswith("the dog") and found.text.count("the dog") == 1


@pytest.mark.parametrize("beam_size", [1, 6])
def test_every_translation_contains_the_required_phrases(exact, beam_size):
    requests = [Source(GERMAN[0], required=("cat",)), Source(GERMAN[1]),
                Source(GERMAN[2], prefix="the", required=("a cat", "dog")), Source("", required=("dog",))]
    first, second, third, blank = exact.translate(requests, beam_size=beam_size, n_best=beam_size)
    assert all("cat" in one.text for one in first)
    assert all(one.text.startswith("the") and "a cat" in one.text and "dog" in one.text for one in third)
    assert [one.text for one in second] \
        == [one.text for one in exact.translate([GERMAN[1]], beam_size=beam_size, n_best=beam_size)[0]]
    assert [one.text for one in blank] == [""]
    everywhere = exact.translate(GERMAN, beam_size=beam_size, require=["house"])
    assert all("house" in one.text for one, in everywhere)


def mostly(translator: Translator, pieces: list[str], monkeypatch) -> None:
    """Change the model so that it repeats these pieces with high probability."""
    ids = [translator.tokenizers.target.pieces(range(translator.tokenizers.target.vocab_size)).index(piece)
           for piece in pieces]
    step = type(translator.engine).step

    def sure(model, last_tokens, state):
        logits, state = step(model, last_tokens, state)
        after = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
        for row, token in zip(logits.logits, last_tokens.tolist(), strict=True):
            row[after.get(token, ids[0])] += 30
        return logits, state

    monkeypatch.setattr(type(translator.engine), "step", sure)


def whole_words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize(("kind", "beam_size"), [("unigram", 1), ("words", 6), *(
    pytest.param(kind, beam_size, marks=pytest.mark.slow) for kind, beam_size in (
        ("unigram", 6), ("words", 1), ("bpe", 1), ("bpe", 6), ("nmt_nfkc", 1), ("nmt_nfkc", 6)))])
def test_phrases_are_required_as_whole_words_by_every_tokenizer(kind, beam_size, tmp_path, monkeypatch):
    kinds = {"unigram": "", "bpe": ", type: bpe", "words": ", type: words", "nmt_nfkc": ", normalization: nmt_nfkc"}
    text = RECIPE.replace("vocab_size: 283", f"vocab_size: 290{kinds[kind]}")
    english = ["a kick", "the kicking", "kicking dog", "Z\u00fcrich", *ENGLISH]
    tokenizers = trained_tokenizers(text, [(line, line) for line in [*english, *GERMAN]])
    translator = Translator.load(bundle(tmp_path / "model", tokenizers, text=text), "cpu", "fp32")
    if kind != "words":
        ing = tokenizers.target.pieces(tokenizers.target.encode(["kicking"])[0])
        mostly(translator, ing, monkeypatch)
    for phrase in ("kick", "Z\u00fcrich", "a kick"):
        for one in itertools.chain(*translator.translate(GERMAN, require=[phrase], beam_size=beam_size,
                                                         n_best=beam_size, max_length_offset=17, safety_net=False)):
            assert f" {phrase} " in f" {' '.join(whole_words(one.text))} ", one.text


def test_what_follows_a_required_phrase_does_not_lengthen_its_last_word(exact, monkeypatch):
    cat = [*exact.tokenizers.target.pieces(exact.tokenizers.target.encode(["cat"])[0]), "s"]
    mostly(exact, cat, monkeypatch)
    options = {"max_length_offset": 11, "safety_net": False}
    free = [one.text for one, in exact.translate(GERMAN, **options)]
    assert all("cats" in text for text in free) and not any(
        "cat" in whole_words(text)[:-1] for text in free), "but for one that the longest length cuts"
    for beam_size in (1, 2, 6):
        found = [one.text for one, in exact.translate(GERMAN, require=["cat"], beam_size=beam_size, **options)]
        assert all("cat" in whole_words(text) for text in found), found


def test_a_phrase_is_required_in_any_casing(exact, monkeypatch):
    mostly(exact, exact.tokenizers.target.pieces(exact.tokenizers.target.encode(["THE"])[0]), monkeypatch)
    options = {"max_length_offset": 17, "safety_net": False}
    for beam_size in (1, 6):
        for one, in exact.translate(GERMAN, require=["the"], beam_size=beam_size, **options):
            assert "the" in whole_words(one.text)
        found = exact.translate(GERMAN, require=["the"], beam_size=beam_size, ignore_case=True, **options)
        assert all("the" in whole_words(one.text.lower()) for one, in found)
        assert all("THE" in whole_words(one.text) for one, in found), "what the model prefers"


def test_the_search_proposes_several_casings_of_a_phrase(tokenizers):
    def casings(phrase, **options):
        setup = SearchSetup(DecodingSection(**options), tokenizers.target, "en")
        return tokenizers.target.decode(setup.phrases.required_phrase(phrase).spellings)

    assert casings("Ice cream") == ["Ice cream"]
    assert casings("ICE cream", ignore_case=True) == ["ICE cream", "ice cream", "Ice cream", "Ice Cream", "ICE CREAM"]
    assert casings("stra\u00dfe", ignore_case=True) == ["stra\u00dfe", "Stra\u00dfe"], "SS is no casing of \u00df"
    words = Words(["Ice", "cream", "dog"])
    setup = SearchSetup(DecodingSection(ignore_case=True), words, "en")
    assert words.decode(setup.phrases.required_phrase("ICE").spellings) == ["Ice"]
    with pytest.raises(RequestError, match="^line 3: "):
        setup.phrases.required_phrase("Dogs", 2)


def test_phrases_are_normalised_like_other_text():
    text = RECIPE.replace("vocab_size: 283", "vocab_size: 283, normalization: nmt_nfkc")
    target = trained_tokenizers(text).target
    setup = SearchSetup(DecodingSection(forbid=("\uff44\uff4f\uff47",)), target, "en")
    required = setup.phrases.required_phrase("a  \uff44\uff4f\uff47")
    assert required.phrase.is_in("a dog") and target.decode(required.spellings) == ["a dog"]
    last = target.encode(["dog"])[0]
    logits = np.zeros((1, target.vocab_size))
    setup.logits_processors[0](Hypotheses(np.array([[last[:-1]]]), [0]), ArrayScores(logits))
    assert logits[0, last[-1]] == -math.inf
    with pytest.raises(RequestError, match="^line 2: "):
        setup.phrases.required_phrase("\u200b", 1)


@pytest.mark.parametrize(("written", "spelled"), [("caf\u00e9", "cafe\u0301"), ("cafe\u0301", "caf\u00e9")])
def test_a_phrase_is_forbidden_in_every_normal_form_of_unicode(tokenizers, written, spelled):
    setup = SearchSetup(DecodingSection(forbid=(written,)), tokenizers.target, "en")
    *first, last = tokenizers.target.encode([spelled])[0]
    logits = np.zeros((1, tokenizers.target.vocab_size))
    setup.logits_processors[0](Hypotheses(np.array([[first]]), [0]), ArrayScores(logits))
    assert logits[0, last] == -math.inf


def test_a_tokenizer_that_puts_no_space_before_a_line_spells_a_phrase_in_two_ways():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(ENGLISH * 3), model_writer=model, vocab_size=277,
                                             byte_fallback=True, add_dummy_prefix=False, minloglevel=2,
                                             normalization_rule_name="identity", remove_extra_whitespaces=False)
    target = Tokenizer(model.getvalue())
    spellings = SearchSetup(DecodingSection(), target, "en").phrases.required_phrase("dog").spellings
    assert [b"".join(target.piece_bytes[piece] for piece in each) for each in spellings] == [b"dog", b" dog"]


def test_no_translation_contains_forbidden_phrases(exact):
    # What a random model says is mostly bytes that are no text: here it says none.
    target = Tokenizer(exact.tokenizers.target.model)
    target.__dict__["never_generated_ids"] = [*target.never_generated_ids, *range(END_ID + 1, END_ID + 257)]
    wordy = dataclasses.replace(exact, tokenizers=Tokenizers(exact.tokenizers.source, target))

    def words(**options):
        return {word for one in itertools.chain(*wordy.translate(GERMAN, **options)) for word in one.text.split()}

    for options in ({"n_best": 6}, {"beam_size": 1}, {"sampling": True, "n_best": 6}):
        forbidden = sorted(words(**options))[::2]
        assert forbidden and not words(forbid=forbidden, **options).intersection(forbidden)
        swapped = [word.swapcase() for word in forbidden]
        assert not {word.lower() for word in words(forbid=swapped, ignore_case=True, **options)}.intersection(
            word.lower() for word in forbidden)


def test_in_languages_without_spaces_phrases_may_occur_anywhere(tokenizers, tmp_path):
    text = RECIPE.replace("target: en", "target: zh")
    chinese = Translator.load(bundle(tmp_path / "model", tokenizers, text=text), "cpu", "fp32")
    for phrase in ("房子", "dog"):
        (found,), = chinese.translate(["ein Hund"], require=[phrase], beam_size=9)
        assert phrase in found.text
    letters = {letter for one in itertools.chain(*chinese.translate(GERMAN)) for letter in one.text if letter.isalnum()}
    for one in itertools.chain(*chinese.translate(GERMAN, forbid=sorted(letters))):
        assert not letters & set(one.text)


def test_length_limits_are_respected(exact):
    for one in itertools.chain(*exact.translate(GERMAN, max_length=3, n_best=3)):
        assert one.tokens <= 4
    for one in itertools.chain(*exact.translate(GERMAN, min_length=13, n_best=3)):
        assert one.tokens >= 14
    for one, in exact.translate(GERMAN, min_length=5, max_length=5):
        assert one.tokens == 6


@pytest.mark.parametrize(("request_", "options"), [
    (Source("ein Hund", required=("dog",)), {"sampling": True}),
    (Source("ein Hund", required=("dog",)), {"diverse_groups": 2}),
    (Source(LONG, required=("dog",)), {}), (Source("ein Hund"), {"min_length": 1000}),
    (Source("ein Hund", required=("the cat runs",)), {"max_length": 2}), (Source("ein Hund", prefix="a\x07dog"), {}),
    (Source("ein Hund", prefix="a dog"), {"forbid": ["dog"]}), (Source("ein Hund", required=("a\x07b",)), {}),
])
def test_constraints_that_cannot_be_satisfied_are_refused_with_the_number_of_the_line(translator, request_, options):
    with pytest.raises(RequestError, match="^line 7"):
        translator.translate([dataclasses.replace(request_, number=6)], **options)


@pytest.mark.parametrize("options", [
    {"diverse_groups": 4}, {"sampling": True, "diverse_groups": 2}, {"sampling": True, "require": ["dog"]},
    {"diverse_groups": 2, "require": ["dog"]}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5},
    {"sampling": True, "temperature": 0.0}, {"mbr": 7}, {"mbr": 3, "n_best": 4}, {"min_length": 5, "max_length": 4},
    {"forbid": [" "]}, {"forbid": ["a"], "require": ["a"]}, {"forbid": ["A "], "require": ["a"], "ignore_case": True},
], ids=str)
def test_options_that_contradict_each_other_are_refused(translator, options):
    with pytest.raises(OptionError):
        translator.translate(["ein Hund"], **options)


# Choosing among candidates


@pytest.mark.parametrize("options", [{}, {"sampling": True}])
def test_minimum_bayes_risk_selects_the_same_translation_as_a_direct_computation(exact, options):
    options = {**options, "safety_net": False}                                  # which could retry the candidates
    for line, found in zip(GERMAN, exact.translate(GERMAN, mbr=6, n_best=6, **options), strict=True):
        (candidates,) = exact.translate([Source(line, number=GERMAN.index(line))], n_best=6, **options)
        utilities = expected_utilities([one.text for one in candidates])
        assert found[0].text == candidates[int(utilities.argmax())].text
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert found[0].score == pytest.approx(utilities.max())
        assert len({one.text for one in found}) == len(found)


def test_diverse_translations_are_all_different(exact):
    found = exact.translate(GERMAN, beam_size=12, diverse_groups=4, diverse_strength=0.0, n_best=12)
    assert all(len(each) == len({one.text for one in each}) <= 3 for each in found)
    assert all(len(each) > 3 for each in exact.translate(GERMAN, beam_size=12, diverse_groups=4, diverse_strength=3.0,
                                                          n_best=12))


def test_minimum_bayes_risk_chooses_among_the_hypotheses_of_a_diverse_beam(exact):
    options = {"beam_size": 6, "diverse_groups": 3, "diverse_strength": 3.0}
    for found, candidates in zip(exact.translate(GERMAN, mbr=3, n_best=3, **options),
                                 exact.translate(GERMAN, n_best=3, **options), strict=True):
        assert {one.text for one in found} == {one.text for one in candidates}


def test_the_coverage_penalty_is_part_of_the_score(exact):
    for one, in exact.translate([*GERMAN, LONG], coverage_penalty=0.5):
        plain = one.log_probability / one.tokens
        assert one.score <= plain
    assert any(one.score < one.log_probability / one.tokens - 1e-3
               for one, in exact.translate(GERMAN, coverage_penalty=0.5, max_length=2))


# Confidence


def test_confidence_is_the_geometric_mean_of_the_probabilities_of_pieces(exact):
    ids, offsets, _ = EncodedSide.from_lists(exact.tokenizers.source.encode(GERMAN[:2])).gather(np.arange(2))
    targets = [[exact.tokenizers.target.encode([text])[0] for text in texts]
               for texts in (["the cat runs", "", "a x\u00e9 dog"], ["a dog"])]
    found = log_probabilities(exact.engine, ids, offsets.astype(np.int32), targets)
    for line, texts, scores in zip(GERMAN, (["the cat runs", "", "a x\u00e9 dog"], ["a dog"]), found, strict=False):
        expected = [pair.log_probability for pair in pair_scores(exact, [(line, text) for text in texts])]
        assert [sum(each) for each in scores] == pytest.approx(expected, abs=1e-5)
    words = words_of(targets[0][2], found[0][2], exact.tokenizers.target, "en")
    assert [word.text for word in words] == ["a", "x\u00e9", "dog"]
    assert math.prod(word.confidence ** size for word, size in
                     zip(words, [len(exact.tokenizers.target.encode([word.text])[0]) for word in words], strict=True)) \
        == pytest.approx(math.exp(sum(found[0][2][:-1])))


def test_words_of_languages_without_spaces_are_pieces_and_characters_stay_whole(tokenizers):
    target = tokenizers.target.encode(["房 a子"])[0]
    words = words_of(target, [-0.5] * len(target), tokenizers.target, "zh")
    assert [word.text for word in words] == ["房", "a", "子"]
    assert [word.confidence for word in words] == pytest.approx([math.exp(-0.5)] * 3)


def test_the_words_with_confidence_join_to_the_translation(exact):
    for one, in exact.translate([*GERMAN, "", LONG], word_confidence=True):
        assert " ".join(word.text for word in one.words).split() == one.text.split()
        assert all(0 < word.confidence <= 1 for word in one.words)


# Several models


def test_an_ensemble_of_the_same_model_twice_is_that_model(places, exact):
    twice = in_double(Translator.load(places[0], "cpu", "fp32", ensemble=[places[0]]))
    for mean in ("probability", "log_probability"):
        for found, expected in zip(twice.translate(LINES, ensemble_mean=mean), exact.translate(LINES), strict=True):
            assert [one.text for one in found] == [one.text for one in expected]
            assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-6)


def test_fusion_with_weight_zero_changes_nothing_and_with_a_weight_it_does(places, speaker, exact):
    fused = in_double(Translator.load(places[0], "cpu", "fp32", fusion=speaker))
    without = [one.text for one, in exact.translate(GERMAN)]
    assert [one.text for one, in fused.translate(GERMAN, fusion_weight=0.0)] == without
    assert [one.text for one, in fused.translate(GERMAN, fusion_weight=3.0)] != without


def test_models_of_other_vocabularies_are_refused(places, tmp_path):
    other = trained_tokenizers(RECIPE, [("ein Haus", "a house"), *zip(GERMAN, ENGLISH, strict=True)])
    place = bundle(tmp_path / "other", other)
    speaking = bundle(tmp_path / "speaking", other, text=OF_A_LANGUAGE_MODEL)
    for models in ({"ensemble": [place]}, {"fusion": speaking}):
        with pytest.raises(CheckpointError):
            Translator.load(places[0], "cpu", "fp32", **models)


@pytest.mark.parametrize(("device", "available", "expected"), [
    ("auto", True, ["cuda:0", "cuda:1", "cuda:0"]), ("cuda", True, ["cuda:0", "cuda:1", "cuda:0"]),
    ("cuda:1", True, ["cuda:1"] * 3), ("cpu", True, ["cpu"] * 3), ("auto", False, ["auto"] * 3)])
def test_workers_use_the_gpus_in_turn(monkeypatch, device, available, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [worker_processes.device_of_worker(worker, device) for worker in range(3)] == expected


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:1"])
def test_only_the_workers_of_a_pool_use_gpus(places, monkeypatch, device):
    class Started(Exception):
        pass

    def start(method):
        raise Started

    monkeypatch.setattr(worker_processes, "count_gpus", lambda: 2)
    monkeypatch.setattr(worker_processes.multiprocessing, "get_context", start)
    with pytest.raises(Started):                                                # before anything is loaded
        TranslatorPool(places[0], 2, device)
