"""Every model and attention: the same losses, gradients and translations on the simulated GPU as on the CPU."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lookup import arrays_of
from simulation import SimulatedGPU

from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.data.epoch_plan import plan_epoch
from seq2seq.inference.eager import EagerEngine
from seq2seq.inference.engines import torch_engine
from seq2seq.model import attention, build_model, loss
from seq2seq.model.loss import Logits, smoothed_cross_entropy
from seq2seq.model.loss import chunks as chunks_of
from seq2seq.model.packing import Sentences
from seq2seq.model.variants import rnn
from seq2seq.recipe import validate_model
from seq2seq.recipe.model_section import section_of_type
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.tokenizers.tokenizer import END_ID

VOCAB_SIZE, LONGEST = 23, 13
TRANSFORMER = {"num_heads": 2, "feed_forward": 24}
RNN = {"type": "rnn", "num_heads": 2}
LANGUAGE_MODEL = {"type": "language_model", **TRANSFORMER}
MODELS = {
    "transformer": TRANSFORMER,
    "transformer-pre-norm": {**TRANSFORMER, "norm": "pre", "positions": "learned", "activation": "gelu",
                             "output_bias": True},
    "transformer-embedding-norm": {**TRANSFORMER, "norm": "pre", "embedding_norm": True},
    "transformer-t5": {**TRANSFORMER, "norm": "pre", "norm_type": "rms", "positions": "relative", "score": "dot",
                       "gated": True, "bias": False, "activation": "gelu_tanh", "head_size": 8,
                       "tied_embeddings": "inputs"},
    "transformer-untied": {**TRANSFORMER, "tied_embeddings": "none"},
    "transformer-dot": {**TRANSFORMER, "score": "dot"},
    "transformer-additive": {**TRANSFORMER, "score": "additive"},
    "transformer-bilinear": {**TRANSFORMER, "score": "bilinear"},
    "transformer-relu": {**TRANSFORMER, "normalize": "relu"},
    "transformer-heads-of-8": {**TRANSFORMER, "num_heads": 4},
    "transformer-window": {**TRANSFORMER, "window": 2},
    "transformer-hard": {**TRANSFORMER, "selection": "hard"},
    "transformer-copy": {**TRANSFORMER, "copy": True},
    "rnn-gru": RNN,
    "rnn-lstm": {**RNN, "cell": "lstm", "input_feeding": True, "encoder_layers": 2, "decoder_layers": 2},
    "rnn-scaled-dot-relu": {**RNN, "score": "scaled_dot", "normalize": "relu"},
    "rnn-dot": {**RNN, "score": "dot"},
    "rnn-bilinear": {**RNN, "score": "bilinear"},
    "rnn-hard": {**RNN, "selection": "hard"},
    "rnn-copy": {**RNN, "copy": True},
    "pointer-gru": {"type": "pointer"},
    "pointer-lstm": {"type": "pointer", "cell": "lstm", "decoder_layers": 2},
    "language-model": LANGUAGE_MODEL,
    "language-model-window": {**LANGUAGE_MODEL, "window": 2, "norm": "pre"},
}
# The others are slow cases.
QUICK = ("transformer", "transformer-pre-norm", "transformer-relu", "transformer-copy", "rnn-gru", "pointer-gru",
         "language-model-window")
EVERY_MODEL = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODELS]
# In half precision, all attention of these is by intervals.
PACKED = ("transformer", "transformer-pre-norm", "transformer-embedding-norm", "transformer-untied", "transformer-dot",
          "transformer-bilinear", "transformer-window", "language-model", "language-model-window")
KERNELS = "_attention_forward", "_attention_backward_of_queries", "_attention_backward_of_keys"


def section_of(keys):
    values = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, "max_positions": LONGEST + 2}
    if "encoder_layers" not in section_of_type(keys).model_fields:
        keys = {key: value for key, value in keys.items() if key != "encoder_layers"}
        del values["encoder_layers"]
    return validate_model(values | keys)


def built(keys):
    """A model of heads of 16, whose weights are random: a fresh one has biases of 0 and gains of 1."""
    section = section_of(keys)
    torch.manual_seed(1)
    pointer = section.type == "pointer"
    model = build_model(section, VOCAB_SIZE, END_ID + LONGEST + 2 if pointer else VOCAB_SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def corpus_for(model_type):
    """Five pairs. The targets of a pointer network are positions in their sources."""
    random = np.random.default_rng(3)
    lengths = [(5, 3), (2, 2), (11, 7), (7, 11), (3, 2)]
    sources = [random.integers(END_ID + 1, VOCAB_SIZE, source).tolist() for source, _ in lengths]
    targets = [random.integers(END_ID + 1, END_ID + 1 + source if model_type == "pointer" else VOCAB_SIZE, target
                               ).tolist() for source, target in lengths]
    return EncodedCorpus(EncodedSide.from_lists(sources), EncodedSide.from_lists(targets))


def trained_step(model, batch, seed=7):
    """Return training loss and likelihood of a batch, and its gradients, copied to the CPU."""
    torch.manual_seed(seed)                                                     # of hard attention's samples
    loss = model.train().loss(batch)
    loss.total.backward()
    gradients = {name: weight.grad.cpu() for name, weight in model.named_parameters()}
    return loss.total.item(), loss.negative_log_likelihood.item(), gradients


def hypotheses(model, batch, beam_size):
    options = SearchOptions(beam_size, power_length_penalty(1.0), n_best=min(beam_size, 2))
    found = search(EagerEngine(model.eval(), "fp32", batch.source.device), *arrays_of(batch), [9, 5, 3, 9, 7],
                   options)
    return [[(each.tokens, pytest.approx(each.log_probability, abs=1e-4)) for each in line] for line in found]


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_losses_gradients_and_search_equal_the_cpus(name, monkeypatch):
    keys = MODELS[name]
    if name == "rnn-hard":                                                      # draws equally many random numbers
        monkeypatch.setattr(rnn, "plan_active_rows", lambda sentences: ([len(sentences)] * sentences.longest, None))
    corpus = corpus_for(keys.get("type"))
    pairs = np.arange(len(corpus))
    filled = gather(corpus, pairs, Shape.of(corpus, pairs).rounded(), LONGEST)
    plain = gather(corpus, pairs)
    expected = trained_step(built(keys), filled)
    with torch.inference_mode():
        likelihood = built(keys).eval().loss(plain).of_tokens
    beam, greedy = (hypotheses(built(keys), plain, size) for size in (3, 1))
    with SimulatedGPU() as gpu:
        on_gpu = built(keys).to("cuda")
        found = trained_step(on_gpu, filled.to(torch.device("cuda")))
        assert gpu.record.operators
        moved = plain.to(torch.device("cuda"))
        with torch.inference_mode():
            scored = on_gpu.eval().loss(moved).of_tokens.cpu()
        assert hypotheses(on_gpu, moved, 3) == beam
        assert hypotheses(on_gpu, moved, 1) == greedy
    assert found[:2] == pytest.approx(expected[:2], rel=1e-5)
    for weight, gradient in expected[2].items():
        torch.testing.assert_close(found[2][weight], gradient, atol=1e-4, rtol=1e-4, msg=weight)
    torch.testing.assert_close(scored, likelihood, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("layers", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_attention_by_intervals_equals_padded_attention_in_a_whole_model(name, layers, monkeypatch):
    keys = {**MODELS[name], "encoder_layers": layers, "decoder_layers": layers}
    corpus = corpus_for(keys.get("type"))
    pairs = np.arange(len(corpus))
    expected = trained_step(built(keys), gather(corpus, pairs))
    filled = gather(corpus, pairs, Shape.of(corpus, pairs).rounded())           # it has tails and empty sentences
    monkeypatch.setattr(attention, "runs_packed", lambda query: True)           # also in fp32
    with SimulatedGPU() as gpu:
        found = trained_step(built(keys).to("cuda"), filled.to(torch.device("cuda")))
        launched = gpu.record.operators
    # Encoder, decoder and cross-attention share their intervals with those of other layers.
    kinds = 1 if keys.get("type") == "language_model" else 3
    assert launched["_find_intervals"] == 2 * kinds
    assert {launched[kernel] for kernel in KERNELS} == {layers * kinds}
    assert found[:2] == pytest.approx(expected[:2], rel=1e-5)
    for weight, gradient in expected[2].items():
        torch.testing.assert_close(found[2][weight], gradient, atol=1e-5 * gradient.abs().max().item() + 1e-5,
                                   rtol=1e-5, msg=weight)


@pytest.mark.parametrize("name", PACKED)
def test_in_half_precision_a_packed_model_is_near_fp32(name):
    keys = MODELS[name]
    corpus = corpus_for(keys.get("type"))
    pairs = np.arange(len(corpus))
    expected, _, precise = trained_step(built(keys), gather(corpus, pairs))
    filled = gather(corpus, pairs, Shape.for_plan(corpus, plan_epoch(corpus, 40, 1, seed=1, epoch=0), LONGEST))
    with SimulatedGPU() as gpu:
        found, _, gradients = trained_step(built(keys).to("cuda").to(torch.bfloat16), filled.to(torch.device("cuda")))
        layers = 1 if keys.get("type") == "language_model" else 3               # encoder, decoder, cross-attention
        assert {gpu.record.operators[kernel] for kernel in KERNELS} == {layers}
    assert found == pytest.approx(expected, rel=0.02)
    for weight, gradient in gradients.items():
        assert gradient.isfinite().all(), weight
        # bf16 has three digits, and some hidden units change sign.
        assert (gradient.float() - precise[weight]).norm() < 0.25 * precise[weight].norm() + 0.05, weight


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_a_model_trains_packed_exactly_if_none_of_its_sentences_is_padded(name, gpu, monkeypatch):
    padded, unpack_indices = [], Sentences.unpack_indices
    monkeypatch.setattr(Sentences, "unpack_indices",
                        lambda *arguments: padded.append(arguments) or unpack_indices(*arguments))
    corpus = corpus_for(MODELS[name].get("type"))
    batch = gather(corpus, np.arange(len(corpus))).to(torch.device("cuda"))
    model = built(MODELS[name])
    assert not model.trains_packed(torch.bfloat16), "on a CPU"
    model.to("cuda")
    trained_step(copy.deepcopy(model).to(torch.bfloat16), batch)
    assert model.trains_packed(torch.bfloat16) == (not padded) == (name in PACKED)
    assert not model.trains_packed(torch.float32)


@pytest.mark.parametrize(("gigabytes", "chunks"), [(80, 2), (24, 5), (8, 15)])
def test_chunks_of_the_loss_have_at_most_one_gigabyte_and_a_64th_of_the_memory(gpu, monkeypatch, gigabytes, chunks):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gigabytes * 10**9))
    weight = torch.zeros(37_000, 1, dtype=torch.bfloat16, device="cuda")
    rows = chunks_of(25_000, weight)
    assert len(rows) == chunks and (rows[0].start, rows[-1].stop) == (0, 25_000)


def test_an_engine_computes_fp32_as_fp32_on_a_gpu(gpu):
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    for each in flags:
        each.allow_tf32 = True
    torch_engine(built(RNN), "fp32", "cuda")
    assert not any(each.allow_tf32 for each in flags)


@pytest.mark.parametrize("copies", [False, True], ids=["cross-entropy", "consistency"])
def test_rows_of_logits_begin_at_multiples_of_16_elements(gpu, monkeypatch, copies):
    strides = []

    def recorded(logits, *arguments):
        strides.append(logits.stride())
        loss.overwrite_with_gradient(logits, *arguments)

    def gradients(device):
        hidden, weight = (torch.linspace(-1, 1, rows * 6).view(rows, 6).to(device).requires_grad_()
                          for rows in (10, VOCAB_SIZE))
        target = torch.arange(10).to(device)
        total = smoothed_cross_entropy(Logits(hidden, weight, None), target, 10, 0.1, 0.5 * copies).total
        total.backward()
        return [each.detach().cpu() for each in (total, hidden.grad, weight.grad)]

    monkeypatch.setattr(loss, "gradient_function", lambda *_: recorded)
    for found, expected in zip(gradients("cuda"), gradients("cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert strides == [(32, 1), (VOCAB_SIZE, 1)]
