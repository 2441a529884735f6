"""Copy mechanism: the mixture and its gradient computed by hand, and both architectures that support it."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from trainings import final_weights, interrupting, press_ctrl_c, same

from seq2seq.cli import main
from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.model import loss as losses
from seq2seq.model.loss import Logits
from seq2seq.model.packing import Sentences
from seq2seq.model.transformer import Transformer
from seq2seq.model.variants.copying import CopyHead, CopyMixture
from seq2seq.model.variants.rnn import RecurrentModel
from seq2seq.recipe import load_recipe
from seq2seq.signals import Stopped
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.tokenizers.tokenizer import END_ID
from seq2seq.training.run import train

ROOT = Path(__file__).parents[3]

ROUNDING = {"rtol": 0, "atol": 1e-11}
CHOICES = [(Transformer, {}), (Transformer, {"selection": "hard", "pre_norm": True}),
           (Transformer, {"normalize": "relu"}),
           (RecurrentModel, {}), (RecurrentModel, {"cell": "lstm", "selection": "hard", "output_bias": True})]
every_choice = pytest.mark.parametrize(("kind", "choice"), CHOICES, ids=str)
# Ids of source and target; 7 stands twice in the first source, 9 in no source.
PAIRS = [([7, 5, 7, 3], [5, 7, 9]), ([11], [11, 4]), ([9, 8, 12, 6, 13, 4], []), ([3, 5], [5, 3, 5, 3, 5])]


def batch_of(pairs=PAIRS, fill=None):
    sides = [EncodedSide.from_lists(side) for side in zip(*pairs, strict=True)]
    return gather(EncodedCorpus(*sides), np.arange(len(pairs)), fill)


def spans(offsets):
    return [slice(begin, end) for begin, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False)]


def random_mixture(dtype=torch.float64, rows=5, bias=True):
    generator = torch.Generator().manual_seed(2)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True)

    logits = Logits(random(rows, 3), random(13, 3), random(13) if bias else None)
    pieces = torch.tensor([[7, 5, 7, 3], [7, 5, 7, 3], [12, 12, 12, 12], [0, 2, 2, 7], [7, 7, 7, 2]])[:rows]
    return logits, random(rows), random(rows, 4), pieces


# The mixture


def test_the_copy_mixture_follows_the_equation_of_see_et_al_and_sums_to_one():
    logits, gate, scores, pieces = random_mixture()
    weights = scores.softmax(1)
    found = CopyMixture(logits, gate, weights, pieces).dense().exp()
    for row in range(5):
        exponentials = np.exp((logits.weight @ logits.hidden[row] + logits.bias).detach().numpy())
        generating = 1 / (1 + np.exp(-gate[row].item()))
        expected = generating * exponentials / exponentials.sum()
        for piece, weight in zip(pieces[row].tolist(), weights[row].tolist(), strict=True):
            expected[piece] += (1 - generating) * weight
        np.testing.assert_allclose(found[row], expected, rtol=1e-12)
        assert expected.sum() == pytest.approx(1, abs=1e-12)


@pytest.fixture(params=[2, 1536], ids=["many chunks", "one chunk"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(losses, "MAX_CHUNK_ROWS", request.param)


@pytest.mark.parametrize("bias", [True, False])
def test_the_loss_of_a_mixture_is_its_log_probability(chunks, bias):
    logits, gate, scores, pieces = random_mixture(bias=bias)
    output = CopyMixture(logits, gate, scores.softmax(1), pieces)
    # 7 stands in the source, 9 does not; one counts nowhere.
    target = torch.tensor([7, 9, 12, -100, 2])
    expected = output.dense().gather(1, target.clamp(min=0)[:, None]).squeeze(1) * (target >= 0)
    summed = output.loss(target, 4)
    torch.testing.assert_close(summed.log_probabilities, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(summed.of_tokens, -expected.float())
    torch.testing.assert_close(summed.total, -expected.sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(summed.negative_log_likelihood, -expected.sum(), rtol=1e-12, atol=0)
    assert summed.tokens == 4 and not summed.log_probabilities.requires_grad


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_of_the_copy_mixture_loss_equals_finite_differences(chunks, bias):
    logits, gate, scores, pieces = random_mixture(bias=bias)
    target = torch.tensor([7, 9, 12, -100, 2])

    def loss(hidden, weight, gate, scores, *bias):
        output = CopyMixture(Logits(hidden, weight, *(bias or [None])), gate, scores.softmax(1), pieces)
        return output.loss(target, 4).total

    parts = [logits.hidden, logits.weight, gate, scores, *([logits.bias] if bias else [])]
    assert torch.autograd.gradcheck(loss, parts, fast_mode=True)


def test_tokens_that_can_only_be_generated_or_only_copied_have_finite_loss_and_gradient():
    logits, gate, scores, pieces = random_mixture(torch.float32)
    for value in (-200.0, 200.0):
        output = CopyMixture(logits, torch.full_like(gate, value, requires_grad=True), scores.softmax(1), pieces)
        total = output.loss(torch.tensor([9, 7, 12, 11, 2]), 5).total
        gradients = torch.autograd.grad(total, [logits.hidden, logits.weight, output.gate_logit, scores])
        assert total.isfinite() and all(gradient.isfinite().all() for gradient in gradients)


# The head


def test_weights_and_gate_are_their_equations_computed_by_hand(make_model):
    model, batch = make_model(copy=True), batch_of()
    kept = {}
    model.copying.register_forward_hook(lambda _, inputs, output: kept.update(inputs=inputs, output=output))
    model.forward(batch)
    logits, memory, *_ = (part.detach().numpy() if isinstance(part, torch.Tensor) else part for part in kept["inputs"])
    output, hidden = kept["output"], logits.hidden.detach().numpy()
    head = {name: weight.detach().numpy() for name, weight in model.copying.named_parameters()}
    for (source, _), places, rows in zip(PAIRS, spans(batch.source_offsets), spans(batch.target_offsets), strict=True):
        places = slice(places.start, places.stop - 1)                           # the end is not copied
        keys = memory[places] @ head["key.weight"].T + head["key.bias"]
        for row in range(rows.start, rows.stop):
            query = head["query.weight"] @ hidden[row] + head["query.bias"]
            weights = np.exp(keys @ query / np.sqrt(14))
            weights /= weights.sum()
            found = output.weights[row].detach().numpy()
            np.testing.assert_allclose(found[: len(weights)], weights, rtol=1e-10)
            assert (found[len(weights) :] == 0).all(), "end and padding have weight zero"
            gate = head["of_state.weight"] @ hidden[row] + head["of_state.bias"] + head["of_source.weight"] @ (
                weights @ memory[places])
            np.testing.assert_allclose(output.gate_logit[row].item(), gate[0], rtol=1e-10)
            assert output.pieces[row, : len(weights)].tolist() == source


def test_a_head_that_only_copies_returns_the_attended_source_tokens():
    torch.manual_seed(1)
    head = CopyHead(3).double()
    with torch.no_grad():
        head.of_state.bias.fill_(-100.0)
    # Sources of two words, of none, and of one; each sentence has two rows.
    sentences = Sentences.from_offsets(torch.tensor([0, 3, 4, 6], dtype=torch.int32), 3)
    copied = head.start(torch.randn(6, 3, dtype=torch.float64), torch.tensor([7, 5, 2, 2, 11, 2]), sentences)
    found = head.step(torch.randn(6, 3, dtype=torch.float64), torch.zeros(6, 13, dtype=torch.float64), copied).exp()
    expected = [(0, 5), (0, 7), (1, 5), (1, 7), (2, 2), (3, 2), (4, 11), (5, 11)]
    assert list(map(tuple, found.gt(1e-12).nonzero().tolist())) == expected


# Models


@every_choice
def test_step_by_step_equals_teacher_forcing(make_model, kind, choice):
    model, batch = make_model(kind=kind, copy=True, **choice), batch_of()
    expected = model.forward(batch).dense()
    torch.testing.assert_close(expected.exp().sum(1), torch.ones(len(expected), dtype=torch.float64), **ROUNDING)
    rows = [batch.target_input[span] for span in spans(batch.target_offsets)]
    state = model.start(batch.source, batch.source_offsets, batch.longest_source)
    for position in range(batch.longest_target):
        tokens = torch.stack([row[position] if position < len(row) else torch.tensor(END_ID) for row in rows])
        found, state = model.step(tokens, state)
        for number, span in enumerate(spans(batch.target_offsets)):
            if position < span.stop - span.start:
                torch.testing.assert_close(found[number], expected[span][position], **ROUNDING)


@every_choice
def test_outputs_do_not_depend_on_other_sentences_of_the_batch(make_model, kind, choice):
    model, together = make_model(kind=kind, copy=True, **choice), batch_of()
    found = model.forward(together).dense()
    for pair, span in zip(PAIRS, spans(together.target_offsets), strict=True):
        torch.testing.assert_close(found[span], model.forward(batch_of([pair])).dense(), **ROUNDING)


@every_choice
def test_padding_to_a_fixed_shape_changes_nothing(make_model, kind, choice):
    model = make_model(kind=kind, copy=True, **choice)
    results = []
    for fill in (None, Shape(source_tokens=31, target_tokens=29, sentences=11)):
        batch = batch_of(fill=fill)
        model.zero_grad()
        loss = model.loss(batch)
        loss.total.backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        results.append((loss.total, loss.negative_log_likelihood, gradients))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-10)


@every_choice
def test_every_architecture_option_gives_gradients_to_all_parameters(make_model, kind, choice):
    model, batch = make_model(kind=kind, copy=True, **choice).train(), batch_of()
    model.loss(batch).total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


# The whole road

RECIPE = """
name: copying
languages: {{source: en, target: de}}
data:
  train: [{{source: text.en, target: text.de}}]
  valid: {{source: text.en, target: text.de}}
  test: {{same: {{source: text.en, target: text.de}}}}
tokenizer: {{vocab_size: 330}}
model: {{{model}, copy: true, d_model: 16, encoder_layers: 1, decoder_layers: 1, num_heads: 2, dropout: 0.1}}
metrics: [exact]
training:
  {{batch_tokens: 150, learning_rate: 0.01, warmup_steps: 2, max_steps: 4, validate_every: 3, label_smoothing: 0.0,
    valid_sentences: 3,
    best_metric: loss, precision: fp32, threads: 1}}
decoding: {{beam_size: 2, max_length_offset: 3, max_length_ratio: 1, safety_net: false}}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("quick_tensorboard")
@pytest.mark.parametrize("model", ["feed_forward: 32", "type: rnn"])
def test_a_model_that_copies_resumes_to_the_bit_and_translates_from_its_bundle(tmp_path, monkeypatch, capfdbinary,
                                                                               model):
    pairs = script("generate").generate(40)["train"]
    (tmp_path / "text.en").write_text("".join(f"{pair.english}\n" for pair in pairs), encoding="utf-8")
    (tmp_path / "text.de").write_text("".join(f"{pair.german}\n" for pair in pairs), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=model))
    recipe = load_recipe(tmp_path / "recipe.yaml")
    train(recipe, tmp_path / "whole")
    interrupting(monkeypatch, 2, press_ctrl_c)
    with pytest.raises(Stopped):
        train(recipe, tmp_path / "parted")
    train(recipe, tmp_path / "parted")
    whole = final_weights(tmp_path / "whole")
    assert same(final_weights(tmp_path / "parted"), whole)
    assert {name for name in whole if name.startswith("copying.")} >= {"copying.of_state.bias", "copying.query.weight"}
    capfdbinary.readouterr()
    (tmp_path / "text.en").write_text("".join(f"{pair.english}\n" for pair in pairs[:3]), encoding="utf-8")
    assert main(["translate", str(best_bundle(tmp_path / "whole")), str(tmp_path / "text.en"), "--threads", "1"]) == 0
    assert capfdbinary.readouterr().out.count(b"\n") == 3


# The recipe


def script(name):
    """Import a script of recipes/copying as a module."""
    spec = importlib.util.spec_from_file_location(f"copying_{name}", ROOT / "recipes" / "copying" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)     # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_no_name_or_number_of_a_test_sentence_occurs_in_train():
    splits = script("generate").generate(2000, seed=3)
    assert {name: len(pairs) for name, pairs in splits.items()} == {"train": 2000, "valid": 300, "test": 1000}
    seen = {split: {word for pair in pairs for side in (pair.english, pair.german)
                    for word in side.replace(",", "").rstrip(".?").split()} for split, pairs in splits.items()}
    for split in ("valid", "test"):
        copied = {word for pair in splits[split] for word in pair.copied}
        assert len(copied) > 100
        assert not copied & seen["train"]
    assert not {word for pair in splits["valid"] for word in pair.copied} & seen["test"]


def test_names_and_numbers_are_copied_and_the_rest_is_translated():
    generate = script("generate")
    for pair in generate.generate(500)["train"]:
        for side in (pair.english, pair.german):
            assert not Counter(pair.copied) - Counter(word.rstrip(generate.MARKS) for word in side.split())
            assert not {"THINGS", "OTHERS", *"ABPQNM"} & {word.rstrip(generate.MARKS) for word in side.split()}
        assert pair.english != pair.german


def test_a_line_is_correct_if_all_its_names_occur_as_words():
    measure = script("accuracy")
    copied = [["Anna", "12"], ["Bert"], ["Anna", "Anna"], ["7"], ["Rom", "300"]]
    found = measure.accuracy(copied, ["12 sah Anna.", "Berta?", "Anna, Ana", "7", "In Rom, 30"],
                             ["12 sah Anna.", "Bert?", "Anna, Anna", "Es sind 7", "In Rom 300"])
    assert found == {"names": 50.0, "numbers": pytest.approx(200 / 3), "both": 40.0, "exact": 20.0}
