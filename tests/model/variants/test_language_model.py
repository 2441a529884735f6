"""The language model: its computation, and generation by a model that was trained from a text file."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.model import build_model, weighing_of
from seq2seq.model.layers import sinusoids
from seq2seq.model.variants.language_model import LanguageModel
from seq2seq.recipe.model_section import LanguageModelSection
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

ROUNDING = {"rtol": 0, "atol": 1e-12}
VOCAB_SIZE = 23
LENGTHS = (3, 11, 2, 5)

CHOICES = [
    {}, {"pre_norm": True}, {"activation": "gelu"}, {"positions": "learned"}, {"tied_embeddings": False},
    {"output_bias": True}, {"scale_embedding": False},
]
# Their equations are tested with attention itself.
OF_ATTENTION = [{"window": 3}, {"positions": "relative"}, {"score": "additive"}, {"score": "bilinear"},
                {"normalize": "relu"}]
every_choice = pytest.mark.parametrize("choice", CHOICES, ids=str)


def make_language_model(score="scaled_dot", normalize="softmax", **options):
    torch.manual_seed(1)
    sizes = {"vocab_size": VOCAB_SIZE, "d_model": 14, "layers": 3, "num_heads": 2, "feed_forward": 17,
             "max_positions": 13}
    model = LanguageModel(weighing=weighing_of(score, normalize), **(sizes | options)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def texts(*sentences):
    """Return a packed batch of texts, given as ids without `</s>`."""
    corpus = EncodedCorpus(EncodedSide.from_lists([[] for _ in sentences]), EncodedSide.from_lists(sentences))
    return gather(corpus, np.arange(len(sentences)))


def random_texts():
    random = np.random.default_rng(1)
    return texts(*(random.integers(END_ID + 1, VOCAB_SIZE, length - 1).tolist() for length in LENGTHS))


def spans(batch):
    offsets = batch.target_offsets.tolist()
    return [slice(begin, end) for begin, end in zip(offsets, offsets[1:], strict=False)]


# What it computes


def plain_logits(model, tokens):
    """Reference for one text, (length, vocab_size), written with torch.nn.functional only."""
    length, width, heads = len(tokens), model.d_model, model.num_heads
    hidden = F.embedding(tokens, model.embedding) * model.scale + model.positions[:length]
    for layer in model.layers:
        attention, read = layer.self_attention, hidden
        if layer.self_residual.pre_norm:
            read = F.layer_norm(hidden, (width,), layer.self_residual.norm.weight, layer.self_residual.norm.bias)
        attended, _ = F.multi_head_attention_forward(
            read[:, None], read[:, None], read[:, None], width, heads, attention.query_key_value.weight,
            attention.query_key_value.bias, None, None, False, 0.0, attention.output.weight, attention.output.bias,
            attn_mask=torch.ones(length, length, dtype=torch.bool).triu(1))
        hidden = hidden + attended[:, 0]
        if not layer.self_residual.pre_norm:
            hidden = F.layer_norm(hidden, (width,), layer.self_residual.norm.weight, layer.self_residual.norm.bias)
        read, norm = hidden, layer.feed_forward_residual.norm
        if layer.feed_forward_residual.pre_norm:
            read = F.layer_norm(hidden, (width,), norm.weight, norm.bias)
        inner = layer.feed_forward.activation(F.linear(read, *layer.feed_forward.inner.parameters()))
        hidden = hidden + F.linear(inner, *layer.feed_forward.outer.parameters())
        if not layer.feed_forward_residual.pre_norm:
            hidden = F.layer_norm(hidden, (width,), norm.weight, norm.bias)
    if isinstance(model.norm, torch.nn.LayerNorm):
        hidden = F.layer_norm(hidden, (width,), model.norm.weight, model.norm.bias)
    return F.linear(hidden, model.output_weight, model.output_bias)


@every_choice
def test_logits_equal_those_of_torch_functions(choice):
    model, batch = make_language_model(**choice), random_texts()
    logits = model.forward(batch).dense()
    for span in spans(batch):
        torch.testing.assert_close(logits[span], plain_logits(model, batch.target_input[span]), **ROUNDING)


def test_a_language_model_ignores_the_source(make_batch):
    model, batch = make_language_model(), make_batch()
    target = [batch.target_output[span][:-1].tolist() for span in spans(batch)]
    torch.testing.assert_close(model.forward(batch).dense(), model.forward(texts(*target)).dense(), **ROUNDING)


@pytest.mark.parametrize("choice", [*CHOICES, *OF_ATTENTION], ids=str)
def test_step_by_step_equals_teacher_forcing(choice):
    model, batch = make_language_model(**choice), random_texts()
    state = model.start(batch.source, batch.source_offsets, batch.longest_source)
    scored = {}
    # Texts that have ended go on with whatever fills their row; the others must not notice.
    for position in range(batch.longest_target):
        places = [min(span.start + position, span.stop - 1) for span in spans(batch)]
        logits, state = model.step(batch.target_input[places], state)
        for row, span in enumerate(spans(batch)):
            if span.start + position < span.stop:
                scored[span.start + position] = logits[row]
    stepped = torch.stack([scored[index] for index in range(batch.target_count)])
    torch.testing.assert_close(stepped, model.forward(batch).dense(), **ROUNDING)


def test_selected_rows_continue_from_their_own_state():
    model = make_language_model()
    history = {"a": [3, 4], "b": [5, 6], "c": [7, 8], "d": [9, 10]}
    source, offsets = torch.full((4,), END_ID), torch.arange(5, dtype=torch.int32)
    state = model.start(source, offsets, 1)
    for tokens in zip(*([START_ID, *past] for past in history.values()), strict=True):
        _, state = model.step(torch.tensor(tokens), state)
    state = state.select(torch.tensor([[2, 2], [0, 0], [3, 3]]))                # b is done; beams of two
    logits, state = model.step(torch.tensor([11, 12, 13, 14, 15, 16]), state)
    state = state.select(torch.tensor([[1, 0], [2, 3], [5, 5]]))
    logits, _ = model.step(torch.tensor([3, 4, 5, 6, 7, 8]), state)
    expected = [("c", 12, 3), ("c", 11, 4), ("a", 13, 5), ("a", 14, 6), ("d", 16, 7), ("d", 16, 8)]
    for row, (name, third, fourth) in enumerate(expected):
        tokens = torch.tensor([START_ID, *history[name], third, fourth])
        torch.testing.assert_close(logits[row], plain_logits(model, tokens)[-1], **ROUNDING)


def test_a_text_longer_than_the_positions_is_an_error():
    model = make_language_model(max_positions=7)
    with pytest.raises(ValueError):
        model.forward(texts([3] * 7))


def test_recipe_keys_build_the_same_model_as_constructor_arguments():
    section = LanguageModelSection(d_model=14, decoder_layers=3, num_heads=2, feed_forward=17, activation="silu",
                                   norm="pre", positions="learned", max_positions=29, tied_embeddings="none",
                                   scale_embedding=False, output_bias=True)
    model = build_model(section, source_vocab_size=11, target_vocab_size=13)
    assert isinstance(model, LanguageModel)
    assert build_model(section.model_copy(update={"window": 5}), 11, 13).window == 5
    assert (len(model.layers), model.num_heads, model.d_model, model.max_positions) == (3, 2, 14, 29)
    assert (model.scale, model.output_weight.shape, model.output_bias.shape) == (1, (13, 14), (13,))
    assert model.output_weight is not model.embedding and model.positions.shape == (29, 14)
    assert isinstance(model.norm, torch.nn.LayerNorm)
    tied = build_model(section.model_copy(update={"tied_embeddings": "all", "positions": "sinusoidal"}), 13, 13)
    assert tied.output_weight is tied.embedding
    assert torch.equal(tied.positions, sinusoids(29, 14))


def test_every_parameter_gets_a_gradient():
    model, batch = make_language_model(), random_texts()
    F.cross_entropy(model.forward(batch).dense(), batch.target_output).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
