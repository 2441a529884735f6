"""Every decoding option: the same translations on the simulated GPU as on the CPU, in fp32."""

import numpy as np
import pytest
import torch
from random_models import GERMAN, PAIRS, recipe_text, save_random_model, trained_tokenizers
from simulation import SimulatedGPU

from seq2seq.tokenizers.source import Source
from seq2seq.translation.attention_maps import compute_pair_attention
from seq2seq.translation.generation import generate
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator

VOCAB_SIZE = 290
MODEL = "d_model: 16, encoder_layers: 1, decoder_layers: 2, num_heads: 2, feed_forward: 24"
LANGUAGE_MODEL = "type: language_model, d_model: 16, decoder_layers: 1, num_heads: 2, feed_forward: 24"
DECODING = "beam_size: 3, max_length_ratio: 0.5, max_length_offset: 5"
OPTIONS = {
    "beam": {}, "greedy": {"beam_size": 1}, "n-best": {"beam_size": 5, "n_best": 4},
    "wu-penalty": {"length_penalty_form": "wu", "patience": 2.0}, "small-batches": {"batch_tokens": 20},
    "sampling": {"sampling": True, "n_best": 3},
    "narrowed-sampling": {"sampling": True, "temperature": 0.7, "top_k": 7, "top_p": 0.9, "min_p": 0.01},
    "mbr-of-samples": {"sampling": True, "mbr": 5}, "mbr-of-a-beam": {"mbr": 3},
    "diverse": {"beam_size": 4, "diverse_groups": 2, "n_best": 2}, "require": {"require": ("house",)},
    "require-any-case": {"require": ("House",), "ignore_case": True}, "forbid": {"forbid": ("dog", "a cat")},
    "no-repeat": {"no_repeat_ngram": 2}, "min-length": {"min_length": 4}, "coverage": {"coverage_penalty": 0.2},
    "word-confidence": {"word_confidence": True}, "retries": {"safety_net": True},
}
# Models of one vocabulary: two translation models and a language model.
SIDES = {"first": (MODEL, 1), "second": (MODEL, 2), "recurrent": (
    "type: rnn, d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 1", 3), "speaking": (LANGUAGE_MODEL, 4)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Directory of random models."""
    folder = tmp_path_factory.mktemp("models")
    tokenizers = trained_tokenizers(recipe_text(VOCAB_SIZE, MODEL, DECODING))
    for name, (model, seed) in SIDES.items():
        text = recipe_text(VOCAB_SIZE, model, f"{DECODING}, safety_net: false")
        if name == "speaking":
            text = text.replace("source: de, ", "").replace("{source: train.de, target: train.en}", "{text: train.en}"
                                                            ).replace("{source: test.de, target: test.en}",
                                                                      "{text: test.en}")
        save_random_model(folder / name, text, tokenizers, seed, noise=0.1)
    return folder


def on_both(translate):
    """Call with the device; return the results on the CPU and on the simulated GPU."""
    expected = translate("cpu")
    with SimulatedGPU() as gpu:
        found = translate("cuda")
        assert gpu.record.operators
    return found, expected


def assert_same(found, expected):
    assert [[each.text for each in line] for line in found] == [[each.text for each in line] for line in expected]
    for line, same in zip(found, expected, strict=True):
        for each, other in zip(line, same, strict=True):
            assert each.log_probability == pytest.approx(other.log_probability, abs=1e-3)
            assert (each.tokens, each.faults, each.retried) == (other.tokens, other.faults, other.retried)
            assert [word.text for word in each.words] == [word.text for word in other.words]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_finds_what_it_finds_on_the_cpu(models, name):
    assert_same(*on_both(lambda device: Translator.load(models / "first", device, "fp32").translate(
        GERMAN, **OPTIONS[name])))


@pytest.mark.usefixtures("search_kernels")
@pytest.mark.parametrize("options", [{"beam_size": 1}, {"beam_size": 3, "n_best": 2, "patience": 1.5}], ids=str)
def test_the_search_with_kernels_finds_what_the_cpu_finds(models, options):
    assert_same(*on_both(lambda device: Translator.load(models / "first", device, "fp32").translate(
        GERMAN[:3], **options, max_length=7)))


@pytest.mark.usefixtures("search_kernels")
def test_batches_on_a_gpu_are_larger_if_its_memory_suffices(models, monkeypatch):
    def batch_tokens(device, *others, **options):
        translator = Translator.load(models / "first", device, "fp32", ensemble=others)
        setup = translator.search_setup(options)
        return translator._batch_tokens(setup.parts(Source(GERMAN[0], number=0), GERMAN[:1]), setup)

    assert batch_tokens("cpu") == 8192
    with SimulatedGPU():
        assert batch_tokens("cuda") == 65_536 and batch_tokens("cuda", batch_tokens=77) == 77
        assert batch_tokens("cuda", sampling=True) == batch_tokens("cuda", models / "second") == 8192
        # Twice 304 logits and 4 vectors of 16 numbers, and 8 times the keys and values of 2 layers, of 4 bytes each.
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (20_000_000, 2**30))
        assert batch_tokens("cuda") == 16_000_000 // (4 * (2 * (304 + 4 * 16) + 8 * 2 * 2 * 16))


def test_constraints_of_a_line(models):
    requests = [Source(GERMAN[0], prefix="the dog"), Source(GERMAN[1], required=("cat",)), Source(GERMAN[2])]
    assert_same(*on_both(lambda device: Translator.load(models / "first", device, "fp32").translate(requests)))


@pytest.mark.parametrize("mean", ["probability", "log_probability"])
def test_ensembles(models, mean):
    assert_same(*on_both(lambda device: Translator.load(
        models / "first", device, "fp32", ensemble=[models / "second", models / "recurrent"]
    ).translate(GERMAN, ensemble_mean=mean)))


@pytest.mark.parametrize("options", [{}, {"coverage_penalty": 0.2}, {"require": ("house",)}],
                         ids=["alone", "coverage", "require"])
def test_fusion_with_a_language_model(models, options):
    assert_same(*on_both(lambda device: Translator.load(
        models / "first", device, "fp32", fusion=models / "speaking").translate(GERMAN, **options)))


def test_scores_of_given_translations(models):
    found, expected = on_both(lambda device: pair_scores(Translator.load(models / "first", device, "fp32"), PAIRS))
    assert [each.log_probability for each in found] == pytest.approx([each.log_probability for each in expected],
                                                                     abs=1e-3)


@pytest.mark.parametrize("options", [{}, {"sampling": True}], ids=["beam", "sampling"])
def test_texts_of_a_language_model(models, options):
    found, expected = on_both(lambda device: list(generate(Translator.load(models / "speaking", device, "fp32"),
                                                           ["the", ""], max_length=9, **options)))
    assert [[each.text for each in texts] for texts in found] == [[each.text for each in texts] for texts in expected]


def test_attention_maps(models):
    found, expected = on_both(lambda device: list(compute_pair_attention(
        Translator.load(models / "first", device, "fp32"), PAIRS)))
    for (number, pair), (same_number, same) in zip(found, expected, strict=True):
        assert number == same_number
        assert pair.maps.keys() == same.maps.keys()
        for kind, weights in same.maps.items():
            np.testing.assert_allclose(pair.maps[kind], weights, atol=1e-5)


def test_half_precision_translates(models):
    with SimulatedGPU():
        translator = Translator.load(models / "first", "cuda")
        assert translator.precision == "bf16"
        assert all(best.text for best, *_ in translator.translate(GERMAN))
