"""The translator: one list of translations for any line, scores that equal the model's, and invalid models."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import typing
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from random_models import ENGLISH, GERMAN, parsed, random_model, recipe_text, save_random_model, trained_tokenizers

from seq2seq.data.batching import EncodedSide
from seq2seq.errors import CheckpointError, TokenizerError, UserError
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.load_model import read_stored_model, stored_weights
from seq2seq.recipe import DecodingOptions, DecodingSection, Recipe
from seq2seq.search.beam import search
from seq2seq.search.options import wu_length_penalty
from seq2seq.storage.checkpoints import MODEL, RECIPE, load_bundle, save_bundle
from seq2seq.storage.tensor_files import read_tensors
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, Tokenizer, Tokenizers
from seq2seq.training.distributed import translate_lines, translate_whole_blocks
from seq2seq.translation import line_search as module
from seq2seq.translation.generation import generate
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.search_setup import SearchSetup
from seq2seq.translation.translation import Translation
from seq2seq.translation.translator import Translator
from seq2seq.translation.word_confidence import Word
from seq2seq.translation.worker_processes import TranslatorPool

# The model is random: it says nothing, but says it reproducibly. (Its faults are the matter of test_safety_net.py.)
RECIPE_TEXT = recipe_text(
    283, "d_model: 12, encoder_layers: 1, decoder_layers: 2, num_heads: 2, feed_forward: 7, max_positions: 31",
    "beam_size: 3, max_length_ratio: 1.0, max_length_offset: 5, safety_net: false")
LONG = "Der Hund läuft. " * 11 + "Die Katze schläft."
BLANK = ["", " ", "\t\t", "\u3000\u2028", "\x0b\x0c\x1c", "\u0085", "\r"]
MIXED = ["ein Hund läuft", "", "Katze", LONG, " \t", "die Katze läuft im Haus", "\u2028der Hund  ", "a", "\x00",
         "\U0001f600", "<s> </s> <unk>", "der Hund schläft"]


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return parsed(RECIPE_TEXT)


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return trained_tokenizers(RECIPE_TEXT)


@pytest.fixture(scope="module")
def weights(tokenizers) -> dict[str, torch.Tensor]:
    """Models with random weights."""
    return stored_weights(random_model(RECIPE_TEXT, tokenizers, seed=5, noise=0.1))


@pytest.fixture(scope="module")
def bundle(weights, tokenizers, tmp_path_factory) -> Path:
    return save_bundle(tmp_path_factory.mktemp("models") / "model", weights, RECIPE_TEXT, tokenizers.files(), {})


@pytest.fixture(scope="module")
def translator(bundle) -> Translator:
    return Translator.load(bundle, device="cpu", precision="fp32")


@pytest.fixture(scope="module")
def exact(translator) -> Translator:
    """Translator of the same model in float64."""
    engine = EagerEngine(copy.deepcopy(translator.model).double(), "fp32", torch.device(translator.device))
    return dataclasses.replace(translator, engine=engine)


def texts(translations: list[list[Translation]]) -> list[list[str]]:
    return [[translation.text for translation in found] for found in translations]


# Lines


def test_every_line_has_its_translations(translator):
    found = translator.translate(MIXED)
    assert len(found) == len(MIXED)
    assert all(len(one) == 1 for one in found)
    assert not any("\n" in one.text for one, in found)
    assert [one.parts for one, in found] == [1, 0, 1, found[3][0].parts, 0, 1, 1, 1, 1, 1, 1, 1]
    assert translator.translate([]) == []


def test_white_space_is_preserved(translator):
    assert translator.translate(BLANK) == [[Translation(line, 0.0, 0.0, 0, 0)] for line in BLANK]
    assert translator.translate(BLANK, n_best=2) == translator.translate(BLANK)


def test_white_space_around_a_line_is_copied_to_the_output(translator):
    (plain,), = translator.translate(["ein Hund"])
    for before, after in itertools.product(["", " ", "\t \u3000"], ["", "  ", "\u2028\r"]):
        (found,), = translator.translate([f"{before}ein Hund{after}"])
        assert found == Translation(before + plain.text + after, plain.score, plain.log_probability, plain.tokens)
    assert plain.text == plain.text.strip() != ""


def test_a_line_too_long_is_translated_in_parts(translator):
    (found,), = translator.translate([LONG], n_best=2)
    pieces = len(translator.tokenizers.source.encode([LONG])[0])
    assert found.parts >= pieces / translator.max_pieces > 3
    (first,), = translator.translate(["Der Hund läuft."])
    assert found.text.startswith(f"{first.text} ")
    assert found.tokens > found.parts
    assert found.score == pytest.approx(found.log_probability / found.tokens)


def test_parts_of_a_line_are_translated_like_separate_lines(exact):
    parts = ["Der Hund läuft im Haus und schläft.", "Die Katze auch."]
    assert len(exact.tokenizers.source.encode([" ".join(parts)])[0]) > exact.max_pieces
    (whole,), = exact.translate(["\xa0 ".join(parts)])
    alone = [best for best, in exact.translate(parts)]
    assert whole.text == " ".join(best.text for best in alone)
    assert whole.parts == sum(best.parts for best in alone) >= 2
    assert whole.log_probability == pytest.approx(sum(best.log_probability for best in alone), abs=1e-9)
    assert whole.tokens == sum(best.tokens for best in alone)


def test_blank_parts_are_not_translated(exact):
    one, other = "Hund" * 6 + ".", "Katze" * 5 + "."
    (found,), = exact.translate([one + " " * 100 + "\u200b" * 100 + other])
    (first,), (second,) = exact.translate([one, other])
    assert (found.parts, found.text) == (2, f"{first.text} {second.text}")


def test_the_longest_line_that_fits_stays_whole(translator):
    for length, parts in ((29, 1), (30, 2)):
        line = "".join("äx"[number % 2] for number in range(length))
        while len(translator.tokenizers.source.encode([line])[0]) > length:
            line = line[:-1]
        assert len(translator.tokenizers.source.encode([line])[0]) == length
        assert translator.translate([line])[0][0].parts == parts


def test_no_translation_contains_banned_tokens(translator):
    found = translator.translate(GERMAN, beam_size=11, n_best=11)
    for one in itertools.chain(*found):
        assert not set(map(chr, range(32))).intersection(one.text)


# Neighbours


def test_lines_translated_alone_and_together_are_the_same(exact):
    together = exact.translate(MIXED, n_best=2)
    alone = [exact.translate([line], n_best=2)[0] for line in MIXED]
    assert texts(together) == texts(alone)
    for first, second in zip(itertools.chain(*together), itertools.chain(*alone), strict=True):
        assert first.log_probability == pytest.approx(second.log_probability, abs=1e-9)
        assert (first.tokens, first.parts) == (second.tokens, second.parts)
    assert texts(exact.translate(MIXED, n_best=2, batch_tokens=37)) == texts(together)
    assert texts(exact.translate(MIXED[::-1], n_best=2))[::-1] == texts(together)


def test_in_fp32_the_scores_of_a_line_do_not_depend_on_the_batch_up_to_rounding(translator):
    together = translator.translate(MIXED)
    for line, (first,) in zip(MIXED, together, strict=True):
        (second,), = translator.translate([line])
        assert first.score == pytest.approx(second.score, abs=1e-4)


def test_a_stream_is_translated_as_a_list_is(exact, monkeypatch):
    monkeypatch.setattr("seq2seq.translation.sources.FIRST_BLOCK_LINES", 5)
    lines = [*GERMAN, *BLANK[:2]] * 5
    expected = texts(exact.translate(lines, beam_size=1))
    for block_lines in (7, 8192):
        assert texts(exact.translate_stream(iter(lines), block_lines, beam_size=1)) == expected
    assert texts(exact.translate_stream(lines[:7], 1, beam_size=1)) == expected[:7]
    assert list(exact.translate_stream([])) == []


def test_a_stream_answers_before_its_input_ends(translator, monkeypatch):
    monkeypatch.setattr("seq2seq.translation.sources.FIRST_BLOCK_LINES", 5)
    asked = []

    def lines():
        for number in itertools.count():
            asked.append(number)
            yield "Hund"

    stream = translator.translate_stream(lines(), beam_size=1)
    next(stream)
    assert len(asked) == 5
    stream = translator.translate_stream(lines(), 1, beam_size=1)
    asked.clear()
    next(stream)
    assert asked == [0]


@pytest.mark.parametrize("batch_tokens", [11, 4096])
def test_progress_sums_to_the_number_of_lines(translator, batch_tokens):
    for lines in (MIXED, BLANK, []):
        steps: list[int] = []
        translator.translate(lines, progress=steps.append, beam_size=1, batch_tokens=batch_tokens)
        assert sum(steps) == len(lines)
        assert all(step >= 0 for step in steps)
    steps = []
    list(translator.translate_stream(MIXED, 5, progress=steps.append, beam_size=1))
    assert sum(steps) == len(MIXED)


# Options


@pytest.mark.parametrize("options, message", [
    ({"beam_size": 0}, "beam_size"),
    ({"beam_sise": 3}, "beam_sise"),
    ({"n_best": 4}, "a beam of 3 cannot produce 4 translations"),
    ({"length_penalty": -1.0}, "length_penalty"),
    ({"length_penalty_form": "google"}, "length_penalty_form"),
    ({"max_length_ratio": "two"}, "max_length_ratio"),
])
def test_options_are_checked_before_anything_is_translated(translator, options, message):
    def endless():
        raise AssertionError("a line was read")
        yield

    for lines, call in ((["ein Hund"], translator.translate), ([], translator.translate),
                        (endless(), translator.translate_stream)):
        with pytest.raises(UserError, match=message) as caught:
            call(lines, **options)
        assert isinstance(caught.value, ValueError) and "pydantic" not in f"{caught.value}{caught.value.__cause__}"


def test_option_types_are_those_of_the_decoding_section():
    hints, options = typing.get_type_hints(DecodingSection), typing.get_type_hints(DecodingOptions)
    section = {key: hints[key] for key in DecodingSection.model_fields}
    phrases = {"forbid": Sequence[str], "require": Sequence[str]}               # a list will do
    assert list(options) == list(section) and options == section | phrases
    for call in (Translator.translate, Translator.translate_stream, generate, TranslatorPool.translate,
                 TranslatorPool.translate_stream, translate_lines, translate_whole_blocks):
        assert typing.get_type_hints(call)["decoding"] == typing.Unpack[DecodingOptions], call


def test_a_single_text_is_not_translated_letter_by_letter(translator):
    for call in (translator.translate, translator.translate_stream):
        with pytest.raises(TypeError):
            call("ein Hund")


def test_a_block_size_of_zero_is_refused(translator):
    with pytest.raises(UserError):
        translator.translate_stream(["ein Hund"], 0)


@pytest.mark.parametrize("options, error, message", [
    ({"device": "gpu"}, UserError, "device 'gpu' is not supported"),
    ({"precision": "fp64"}, UserError,
     "there is no precision 'fp64'. Use one of auto, reference, fp32, bf16, fp16, int8."),
    ({"threads": 0}, UserError, "threads: expected a number of at least 1; found 0"),
    ({"threads": 10**30}, UserError, "threads: expected a number of at most 1,024; found 1,000,000,000"),
])
def test_errors_while_loading_are_reported(bundle, options, error, message):
    with pytest.raises(error, match=message) as caught:
        Translator.load(bundle, **{"device": "cpu", **options})
    assert "pydantic" not in str(caught.value)


def test_a_model_that_is_not_there_and_no_workers_are_refused(bundle, tmp_path):
    with pytest.raises(CheckpointError, match="nothing does not exist"):
        Translator.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="workers is 0; set it to 1 or more"):
        TranslatorPool(bundle, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("workers_are_processes")
def test_workers_refuse_unknown_options_and_invalid_lines_immediately(bundle):
    with TranslatorPool(bundle, 1, "cpu", "fp32") as pool:
        for call in (pool.translate_stream, pool.translate):
            with pytest.raises(UserError, match="Did you mean 'beam_size'"):
                call(["ein Hund"], beam_sise=2)
            with pytest.raises(UserError, match="beam_size: expected a number of at least 1"):
                call(["ein Hund"], beam_size=0)
            with pytest.raises(TypeError):
                call("ein Hund")
        assert len(list(pool.translate_stream(["ein Hund"], beam_size=1))) == 1


def test_n_best_translations_are_different_and_best_first(translator):
    for found in translator.translate(GERMAN, beam_size=7, n_best=5):
        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
        assert 1 < len({one.text for one in found}) == len(found) <= 5


@pytest.mark.parametrize("options", [{}, {"diverse_groups": 7}, {"mbr": 7}, {"safety_net": False}])
def test_an_n_best_list_has_different_texts_each_of_its_most_probable_hypothesis(translator, monkeypatch, options):
    """The search returns hypotheses of three different texts, as different pieces can."""
    def text(hypothesis):
        return f"text {hypothesis.tokens[-1] % 3 if hypothesis.tokens else 0}"

    monkeypatch.setattr(SearchSetup, "texts", lambda self, hypotheses: list(map(text, hypotheses)))
    for n_best in (2, 5):
        for found in translator.translate(GERMAN, beam_size=7, n_best=n_best, **options):
            assert len({one.text for one in found}) == len(found) <= n_best
            scores = [one.score for one in found]
            assert scores == sorted(scores, reverse=True)
    (best,), (first, *_) = (translator.translate(GERMAN[:1], beam_size=7, n_best=number, **options)[0]
                            for number in (1, 5))
    assert best == first


def test_samples_are_all_kept_because_they_are_draws(translator, monkeypatch):
    monkeypatch.setattr(SearchSetup, "texts", lambda self, hypotheses: ["same"] * len(hypotheses))
    found, = translator.translate(GERMAN[:1], sampling=True, n_best=5)
    assert [one.text for one in found] == ["same"] * 5
    chosen, = translator.translate(GERMAN[:1], sampling=True, mbr=5, n_best=5)
    assert [one.text for one in chosen] == ["same"]


def test_the_length_penalty_reaches_the_score(translator):
    for penalty in (0.0, 0.6, 1.0):
        for one in itertools.chain(*translator.translate(GERMAN, length_penalty=penalty, n_best=3)):
            assert one.score == pytest.approx(one.log_probability / one.tokens ** penalty)
    for one in itertools.chain(*translator.translate(GERMAN, length_penalty=0.6, length_penalty_form="wu")):
        assert one.score == pytest.approx(one.log_probability / wu_length_penalty(0.6)(one.tokens))
        assert one.score != pytest.approx(one.log_probability / one.tokens ** 0.6)


def test_the_longest_translation_follows_the_options(translator):
    (one,), = translator.translate(["ein Hund läuft"], max_length_ratio=0.01, max_length_offset=0)
    assert (one.text, one.tokens) == ("", 1)
    for offset in (2, 3, 5):
        (one,), = translator.translate(["ein Hund läuft"], max_length_ratio=0.01, max_length_offset=offset)
        assert one.tokens <= offset
    # No longer than the model has positions, whatever is asked for.
    (one,), = translator.translate(["ein Hund läuft"], max_length_ratio=100.0)
    assert one.tokens <= 31


def test_a_wider_beam_finds_no_worse_translations(translator):
    narrow, wide = (translator.translate(GERMAN, beam_size=size, length_penalty=0.0) for size in (1, 13))
    gains = [after.score - before.score for (before,), (after,) in zip(narrow, wide, strict=True)]
    assert min(gains) > -1e-4 and max(gains) > 1


# Scores


def test_a_translation_scored_by_teacher_forcing_has_its_log_probability(exact, monkeypatch):
    """Compare only hypotheses whose pieces equal those of the tokenizer for their text; a random model also generates
    others."""
    hypotheses = []
    monkeypatch.setattr(module, "search", lambda *arguments, **options: hypotheses.extend(
        found := search(*arguments, **options)) or found)
    target = Tokenizer(exact.tokenizers.target.model)
    target.__dict__["never_generated_ids"] = [*target.never_generated_ids, *range(END_ID + 1, END_ID + 257)]  # bytes
    wordy = dataclasses.replace(exact, tokenizers=Tokenizers(exact.tokenizers.source, target))
    compared = 0
    for line in GERMAN:
        (found,) = wordy.translate([line], beam_size=97, n_best=97, max_length_ratio=0.1, max_length_offset=3)
        again = pair_scores(exact, [(line, one.text) for one in found])
        by_probability = {hypothesis.log_probability: hypothesis for hypothesis in hypotheses.pop()}
        for one, score in zip(found, again, strict=True):
            hypothesis = by_probability[one.log_probability]
            if target.encode([one.text])[0] == hypothesis.tokens:
                assert score.log_probability == pytest.approx(one.log_probability, abs=1e-5)
                assert score.tokens == one.tokens
                compared += 1
    assert compared > 11


def test_scores_do_not_depend_on_neighbours_and_keep_their_order(exact):
    pairs = [*zip(GERMAN, ENGLISH, strict=True), ("", "a dog"), ("ein Hund", ""), ("a", "the cat runs in the house")]
    together = pair_scores(exact, pairs)
    alone = [pair_scores(exact, [pair])[0] for pair in pairs]
    for first, second, (_, target) in zip(together, alone, pairs, strict=True):
        assert first.log_probability == pytest.approx(second.log_probability, abs=1e-9)
        assert first.tokens == second.tokens == len(exact.tokenizers.target.encode([target])[0]) + 1
        assert first.log_probability < 0
    assert len({score.log_probability for score in together}) == len(pairs)
    assert pair_scores(exact, []) == []


def test_the_score_of_an_empty_translation_is_that_of_ending_at_once(exact):
    pieces = torch.tensor([*exact.tokenizers.source.encode(["ein Hund"])[0], END_ID])
    with torch.inference_mode():
        offsets = torch.tensor([0, len(pieces)], dtype=torch.int32)
        logits, _ = exact.model.step(torch.tensor([START_ID]), exact.model.start(pieces, offsets, len(pieces)))
    (empty,) = pair_scores(exact, [("ein Hund", "")])
    assert empty.tokens == 1
    assert empty.log_probability == pytest.approx(logits.log_softmax(1)[0, END_ID].item(), abs=1e-5)


def test_progress_of_scoring_sums_to_the_number_of_pairs(translator):
    steps: list[int] = []
    pair_scores(translator, list(zip(GERMAN, ENGLISH, strict=True)), steps.append)
    assert sum(steps) == len(GERMAN)


def test_a_pair_too_long_to_be_scored_is_an_error(translator):
    for pair in ((LONG, "a dog"), ("ein Hund", LONG)):
        with pytest.raises(ValueError):
            pair_scores(translator, [pair])


def test_half_a_surrogate_pair_is_an_error(translator):
    with pytest.raises(TokenizerError):
        translator.translate(["ein Hund", "\ud800"])


# Loading


def changed(bundle: Path, place: Path, tokenizers: Tokenizers, weights=None, recipe: str = RECIPE_TEXT) -> Path:
    weights = load_bundle(bundle).weights if weights is None else weights
    return save_bundle(place, weights, recipe, tokenizers.files(), {})


def test_a_bundle_stores_tied_weights_once_and_restores_the_model(bundle, weights, translator):
    names = set(read_tensors(bundle / MODEL))
    assert names == set(weights) == {name for name, _ in translator.model.named_parameters()}
    tied = [name for name, parameter in translator.model.named_parameters(remove_duplicate=False)
            if parameter.shape == (283, 12)]
    assert len(tied) > 1
    assert sum(tensor.shape == (283, 12) for tensor in weights.values()) == 1
    everything = translator.model.state_dict()
    for name in tied:
        assert torch.equal(everything[name], everything[tied[0]])
    assert all(torch.equal(everything[name], weight) for name, weight in weights.items())


def test_a_run_is_translated_by_its_best_bundle(bundle, tmp_path, tokenizers, translator):
    of_bundle = changed(bundle, tmp_path / "run" / "bundles" / "one", tokenizers)
    (tmp_path / "run" / "best").write_text(f"{of_bundle.name}\n")
    of_run = Translator.load(tmp_path / "run", "cpu", "fp32")
    assert texts(of_run.translate(GERMAN)) == texts(translator.translate(GERMAN))


def test_separate_vocabularies_are_each_used_on_their_side(tmp_path):
    text = RECIPE_TEXT.replace("{vocab_size: 283}", "{type: bpe, vocab_size: 281, joint: false}")
    text = text.replace("max_positions: 31", "max_positions: 31, tied_embeddings: decoder")
    both = trained_tokenizers(text)
    translator = Translator.load(save_random_model(tmp_path / "model", text, both, seed=1), "cpu")
    assert not translator.tokenizers.joint
    assert len(translator.translate(GERMAN)) == 4
    score, = pair_scores(translator, [("ein Hund", "the dog sleeps")])
    assert score.tokens == len(both.target.encode(["the dog sleeps"])[0]) + 1
    assert score.tokens != len(both.source.encode(["the dog sleeps"])[0]) + 1


def test_weights_that_are_missing_are_named(bundle, tmp_path, tokenizers, weights):
    fewer = dict(weights)
    name = sorted(fewer)[3]
    del fewer[name]
    place = changed(bundle, tmp_path / "model", tokenizers, fewer)
    with pytest.raises(CheckpointError, match=f"{name} is missing in the bundle, but "):
        Translator.load(place, "cpu")


@pytest.mark.parametrize("right, wrong", [("d_model: 12", "d_model: 14"), ("decoder_layers: 2", "decoder_layers: 3")])
def test_a_recipe_of_another_model_is_refused(bundle, tmp_path, tokenizers, right, wrong):
    place = changed(bundle, tmp_path / "model", tokenizers, recipe=RECIPE_TEXT.replace(right, wrong))
    with pytest.raises(CheckpointError, match=rf"{place}/{MODEL} does not match its {RECIPE}: .*the same run"):
        Translator.load(place, "cpu")


def test_a_recipe_of_fewer_layers_is_refused(bundle, tmp_path, tokenizers):
    """The bundle is complete, but its recipe describes another model than the trained one."""
    text = RECIPE_TEXT.replace("decoder_layers: 2", "decoder_layers: 1")
    with pytest.raises(CheckpointError):
        Translator.load(changed(bundle, tmp_path / "model", tokenizers, recipe=text), "cpu")


def test_a_damaged_bundle_is_refused(bundle, tmp_path, tokenizers):
    for name in (MODEL, RECIPE, "tokenizer.model"):
        place = changed(bundle, tmp_path / name / "model", tokenizers)
        data = bytearray((place / name).read_bytes())
        data[-1] ^= 1
        (place / name).write_bytes(data)
        with pytest.raises(CheckpointError, match=name):
            Translator.load(place, "cpu")


def test_a_bundle_without_a_tokenizer_is_refused(bundle, tmp_path, weights):
    place = save_bundle(tmp_path / "model", weights, RECIPE_TEXT, {}, {})
    with pytest.raises(CheckpointError):
        Translator.load(place, "cpu")


def test_nan_weights_are_refused_and_weights_that_overflow_cause_an_error(bundle, tmp_path, tokenizers, weights):
    broken = {name: torch.full_like(weight, math.nan) for name, weight in weights.items()}
    with pytest.raises(CheckpointError):
        Translator.load(changed(bundle, tmp_path / "model", tokenizers, broken), "cpu")
    large = {name: torch.full_like(weight, 3e38) for name, weight in weights.items()}
    translator = Translator.load(changed(bundle, tmp_path / "large", tokenizers, large), "cpu")
    with pytest.raises(CheckpointError):
        translator.translate(GERMAN)


def test_devices_and_precisions_that_are_not_there_are_refused(bundle):
    for device in ("cuda:77", "tpux"):
        with pytest.raises(UserError):
            Translator.load(bundle, device=device)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_cpu_translates_in_fp32_and_int8_only(bundle, precision):
    with pytest.raises(UserError, match=f"precision {precision} is for GPUs"):
        Translator.load(bundle, device="cpu", precision=precision)


@pytest.mark.parametrize("fast_bf16", [True, False])
def test_the_reference_precision_of_a_cpu_is_fp32(bundle, monkeypatch, fast_bf16):
    monkeypatch.setattr("seq2seq.devices.has_fast_bf16", lambda device: fast_bf16)
    for precision in ("reference", "int8"):                                     # scoring in int8 is in the reference
        translator = Translator.load(bundle, device="cpu", precision=precision)
        assert translator.precision == {"reference": "fp32"}.get(precision, precision)
        assert translator.model.target_embedding.dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_model_in_memory_translates_and_scores_as_its_bundle_does(bundle, precision):
    in_memory = dataclasses.replace(read_stored_model(bundle), directory=None)
    found, expected = Translator.of_model(in_memory, "cpu", precision), Translator.load(bundle, "cpu", precision)
    assert found.translate(GERMAN) == expected.translate(GERMAN)
    pairs = list(zip(GERMAN, ENGLISH, strict=True))
    assert pair_scores(found, pairs) == pair_scores(expected, pairs)


def test_int8_translates_nearly_alike(bundle, translator):
    rough = Translator.load(bundle, device="cpu", precision="int8")
    assert len(rough.translate(GERMAN)) == len(GERMAN)
    ids, offsets, _ = EncodedSide.from_lists(translator.tokenizers.source.encode(GERMAN)).gather(np.arange(4))
    logits = [one.engine.step(np.full(4, START_ID), one.engine.start(ids, offsets.astype(np.int32)))[0].logits
              for one in (translator, rough)]
    assert not np.array_equal(*logits)
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=0.05 * np.abs(logits[0]).max())


SOURCES = ["ein Hund läuft", "zwei Katzen schlafen im Haus . " * 4, "der Mann geht", "eine Frau"] * 3


def test_a_translation_without_retries_is_checked_only(translator):
    checked = dataclasses.replace(translator, retries=False).translate(SOURCES, safety_net=True)
    unchecked = translator.translate(SOURCES, safety_net=False)
    assert [[one.text for one in found] for found in checked] == [[one.text for one in found] for found in unchecked]
    assert any(found[0].faults for found in checked) and not any(found[0].retried for found in checked)


def test_a_translator_and_a_translation_describe_themselves(bundle):
    described = repr(Translator.load(bundle, precision="fp32"))
    parameters = sum(weight.numel() for weight in read_tensors(bundle / MODEL).values())
    assert described == (f"<Translator de to en: transformer, 1 + 2 layers of width 12, {parameters:,} parameters; "
                         "fp32 on cpu>")
    found = Translation("a <b>", -0.5, -3.0, 1_234, faults=("repetition",), words=(Word("a", 0.25),), lost_terms=("x",))
    shown = found._repr_html_()
    for text in ("a &lt;b&gt;", "-0.500", "-3.000 (1,234 tokens)", "repetition", "a 0.25", "lost terms"):
        assert text in shown
    assert "retried" not in shown and "parts" not in shown
