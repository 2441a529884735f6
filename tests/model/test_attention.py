import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from seq2seq.model import weighing_of
from seq2seq.model.attention import (
    PACKED_HEAD_SIZES,
    CrossAttention,
    ScaledDotProduct,
    SelfAttention,
    _padded_attention,
    _PlainAttention,
    attention,
    attention_mask,
    runs_packed,
)
from seq2seq.model.attention_scores import Weighing
from seq2seq.model.packing import Sentences
from seq2seq.model.transformer import FeedForward
from seq2seq.model.variants.hard import HardCrossAttention, select_position

HEADS, HEAD_SIZE = 3, 5
D_MODEL = HEADS * HEAD_SIZE
SCALED_DOT = ScaledDotProduct(HEADS, HEAD_SIZE)
QUERY_LENGTHS, KEY_LENGTHS = (2, 7, 1, 3), (5, 3, 2, 11)
LONG_QUERIES, LONG_KEYS = (2, 257, 1, 63, 130), (64, 101, 2, 255, 7)            # of several blocks


def sentences_of(lengths, tail=0, device="cpu"):
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    return Sentences.from_offsets(offsets, max(lengths), sum(lengths) + tail, tail > 0)


def random_heads(lengths, seed, **options):
    return torch.randn(sum(lengths), HEADS, HEAD_SIZE, generator=torch.Generator().manual_seed(seed),
                       dtype=torch.float64, **options)


def attend_to(query, key, value, *sentences, causal):
    return attention((query[:, None], torch.stack([key, value], 1)), *sentences, SCALED_DOT, causal)


def stacked(query, key, value):
    return query[None], torch.stack([key, value])


def softmax(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attention_by_sentence(query, key, value, query_lengths, key_lengths, causal):
    """Reference in NumPy: the equation for one sentence and one head at a time."""
    attended = np.empty(query.shape)
    query_end = key_end = 0
    for query_length, key_length in zip(query_lengths, key_lengths, strict=True):
        queries = slice(query_end, query_end := query_end + query_length)
        keys = slice(key_end, key_end := key_end + key_length)
        for head in range(query.shape[1]):
            scores = query[queries, head] @ key[keys, head].T / math.sqrt(query.shape[2])
            if causal:
                scores[np.triu_indices(query_length, 1)] = -np.inf
            attended[queries, head] = softmax(scores) @ value[keys, head]
    return attended


@pytest.mark.parametrize("training", [True, False], ids=["with gradients", "without gradients"])
@pytest.mark.parametrize("causal", [True, False])
def test_every_sentence_attends_to_its_own_keys_only(causal, training):
    key_lengths = QUERY_LENGTHS if causal else KEY_LENGTHS
    query, key, value = (random_heads(lengths, seed, requires_grad=training)
                         for seed, lengths in enumerate((QUERY_LENGTHS, key_lengths, key_lengths)))
    with torch.set_grad_enabled(training):
        attended = attend_to(query, key, value, sentences_of(QUERY_LENGTHS), sentences_of(key_lengths), causal=causal)
    expected = attention_by_sentence(*(tensor.detach().numpy() for tensor in (query, key, value)),
                                     QUERY_LENGTHS, key_lengths, causal)
    torch.testing.assert_close(attended.detach(), torch.from_numpy(expected), rtol=0, atol=1e-12)


def padded_inputs():
    random = torch.Generator().manual_seed(1)
    shapes = (2, HEADS, 7, HEAD_SIZE), (2, HEADS, 11, HEAD_SIZE), (2, HEADS, 11, HEAD_SIZE)
    inputs = [torch.randn(shape, dtype=torch.float64, generator=random, requires_grad=True) for shape in shapes]
    seen = torch.rand(2, 1, 7, 11, generator=random) < 0.5
    seen[..., 3] = True                                                         # each query sees a key
    return inputs, seen


def test_the_plain_body_and_its_gradients_equal_torch():
    inputs, seen = padded_inputs()
    ours = _PlainAttention.apply(seen, *stacked(*inputs))
    torchs = F.scaled_dot_product_attention(*inputs, attn_mask=seen)
    torch.testing.assert_close(ours, torchs, rtol=0, atol=1e-12)
    arriving = torch.randn_like(ours)
    for gradient, expected in zip(torch.autograd.grad(ours, inputs, arriving),
                                  torch.autograd.grad(torchs, inputs, arriving), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_the_gradient_of_the_plain_body_is_the_derivative():
    inputs, seen = padded_inputs()
    small = [tensor.detach()[:, :1, :3, :2].requires_grad_() for tensor in inputs]
    mask = seen[..., :3, 1:4]
    assert torch.autograd.gradcheck(lambda *heads: _PlainAttention.apply(mask[..., [2, 0, 1]], *stacked(*heads)), small)


@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
                    reason="attention by intervals needs CUDA of compute capability 8.0 or above")
@pytest.mark.parametrize("head_size", PACKED_HEAD_SIZES)
@pytest.mark.parametrize(("causal", "window", "cross"), [(False, None, False), (True, None, False), (False, 2, False),
                                                         (True, 3, False), (False, None, True)])
def test_attention_by_intervals_agrees_with_padded_attention(causal, window, cross, head_size):
    sides = [sentences_of(lengths, tail, "cuda")
             for lengths, tail in ((LONG_QUERIES, 70), (LONG_KEYS, 3))][: 1 + cross] * (2 - cross)
    inputs = [torch.randn(len(side.positions), parts, HEADS, head_size, device="cuda", dtype=torch.bfloat16,
                          requires_grad=True) for side, parts in zip(sides, (1, 2) if cross else (3,), strict=False)]
    assert runs_packed(inputs[0][:, 0])
    packed, again = (attention(tuple(inputs), *sides, SCALED_DOT, causal, window) for _ in range(2))
    padded = _padded_attention(tuple(inputs), *sides, SCALED_DOT, causal, window)
    arriving = torch.randn_like(packed)
    torch.testing.assert_close(packed, padded, rtol=0, atol=0.03)
    gradients = [torch.autograd.grad(attended, inputs, arriving) for attended in (packed, padded, again)]
    for ours, theirs, same in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.06)
        assert torch.equal(ours, same)
    assert torch.equal(packed, again) and not packed[sum(LONG_QUERIES) :].any()
    assert not any(gradient[-3:].any() for gradient in gradients[0])


def test_projections_of_attention_are_drawn_from_the_range_that_pytorch_and_fairseq_use():
    # Glorot and Bengio 2010, equation 16: uniform between -+ sqrt(6 / (fan_in + fan_out)). torch.nn.MultiheadAttention
    # draws query, key and value as one matrix of 3 * 41 outputs, fairseq each with gain 1/sqrt(2): the same range.
    torch.manual_seed(1)
    bound = math.sqrt(6 / (41 + 3 * 41))
    theirs = torch.nn.MultiheadAttention(41, 1).in_proj_weight
    assert 0.98 * bound < theirs.abs().max() <= bound
    own, cross = SelfAttention(41, 1), CrossAttention(41, 1)
    for layer, fused in ((own.query_key_value, 3), (own.output, 1), (cross.query, 1), (cross.key_value, 2)):
        for matrix in layer.weight.chunk(fused):
            assert matrix.shape == (41, 41) and 0.98 * bound < matrix.abs().max() <= bound
        assert layer.bias.eq(0).all()


def test_the_feed_forward_sublayer_is_drawn_from_the_smaller_range_too():
    torch.manual_seed(1)
    layer = FeedForward(41, 127, "relu")
    bound = math.sqrt(6 / (41 + 127)) / math.sqrt(2)
    for matrix in (layer.inner.weight, layer.outer.weight):
        assert 0.98 * bound < matrix.abs().max() <= bound


def test_cross_attention_weights_are_a_distribution_and_produce_the_output():
    torch.manual_seed(1)
    layer = CrossAttention(D_MODEL, HEADS).double()
    sentences = sentences_of((5, 2))
    keys, values = layer.start(torch.randn(7, D_MODEL, dtype=torch.float64), sentences)
    hidden = torch.randn(6, D_MODEL, dtype=torch.float64)                       # (sentences * 3, d_model)
    bias = torch.zeros(2, 1, 5, dtype=torch.float64).masked_fill(~sentences.token_mask[:, None], -math.inf)
    bias = bias[:, None].repeat(1, HEADS, 1, 1)
    weights = layer.weights(hidden, keys, bias)                                 # (rows, heads, longest_source)
    assert weights.shape == (6, HEADS, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(6, HEADS, dtype=torch.float64))
    assert weights[3:, :, 2:].eq(0).all() and weights[:3].min() > 0
    attended = torch.einsum("shl,shld->shd", weights, values.repeat_interleave(3, 0))
    step = layer.make_step_function()
    torch.testing.assert_close(layer.output(attended.flatten(1)), step(hidden, keys, values, bias))


@torch.no_grad()
def test_self_attention_step_by_step_equals_full_self_attention():
    torch.manual_seed(1)
    layer = SelfAttention(D_MODEL, HEADS).double()
    hidden = torch.randn(7, D_MODEL, dtype=torch.float64)
    at_once = layer(hidden, sentences_of((7,)), causal=True).dense()
    keys, values = torch.zeros(2, 1, HEADS, 9, HEAD_SIZE, dtype=torch.float64)
    bias = torch.full((1, HEADS, 1, 9), -math.inf, dtype=torch.float64)
    for position in range(7):
        bias[..., position] = 0
        # The slots to write are a slice, or indices on the device.
        for new_slots in (slice(position, position + 1), torch.tensor([position])):
            keys[:, :, position] = values[:, :, position] = 0
            output = layer.make_step_function()(hidden[position : position + 1].detach(), keys, values, new_slots, bias)
            torch.testing.assert_close(output[0], at_once[position], rtol=0, atol=1e-12)


# The family


def scores_by_hand(kind, query, keys, weight):
    """Return the scores of one head, (queries, keys), each computed separately from its equation."""
    scores = np.empty((len(query), len(keys)))
    for row, q in enumerate(query):
        for column, x in enumerate(keys):
            scores[row, column] = {
                "scaled_dot": lambda x=x, q=q: x @ q / math.sqrt(len(q)),
                "dot": lambda x=x, q=q: x @ q,
                "bilinear": lambda x=x, q=q: q @ weight @ x,
                "additive": lambda x=x, q=q: weight @ np.tanh(x + q),
            }[kind]()
    return scores


NORMALISED = {"softmax": softmax, "relu": lambda scores: np.maximum(scores, 0)}
every_score = pytest.mark.parametrize("score", ["scaled_dot", "dot", "bilinear", "additive"])
every_normalisation = pytest.mark.parametrize("normalize", ["softmax", "relu"])
every_window = pytest.mark.parametrize("window", [None, 1, 2], ids=str)


@every_window
@every_normalisation
@every_score
@torch.no_grad()
def test_every_attention_function_follows_its_equation(score, normalize, window):
    torch.manual_seed(1)
    weighing = Weighing(HEADS, HEAD_SIZE, score, normalize).double()
    query, key, value = (random_heads(QUERY_LENGTHS, seed) for seed in range(3))
    sentences = sentences_of(QUERY_LENGTHS)
    attended = attention((weighing.prepare(query)[:, None], torch.stack([key, value], 1)), sentences, sentences,
                         weighing, causal=True, window=window)
    begin = 0
    for length in QUERY_LENGTHS:
        rows = slice(begin, begin := begin + length)
        for head in range(HEADS):
            weight = weighing.weight[head].numpy() if score in ("bilinear", "additive") else None
            scores = scores_by_hand(score, query[rows, head].numpy(), key[rows, head].numpy(), weight)
            distance = np.arange(length)[:, None] - np.arange(length)
            scores[(distance < 0) | (distance > (length if window is None else window))] = -np.inf
            expected = NORMALISED[normalize](scores) @ value[rows, head].numpy()
            torch.testing.assert_close(attended[rows, head], torch.from_numpy(expected), rtol=0, atol=1e-12)


@every_normalisation
@every_score
def test_the_gradient_of_every_attention_function_is_its_derivative(score, normalize):
    torch.manual_seed(2)
    weighing = Weighing(2, 3, score, normalize).double()
    query, memory = (torch.randn(shape, dtype=torch.float64, requires_grad=True)
                     for shape in ((5, 1, 2, 3), (7, 2, 2, 3)))
    sides = sentences_of((2, 3)), sentences_of((3, 4))

    def attended(query, memory, *_):
        return attention((weighing.prepare(query), memory), *sides, weighing)

    assert torch.autograd.gradcheck(attended, (query, memory, *weighing.parameters()))


def test_additive_scores_computed_in_blocks_equal_those_computed_at_once(monkeypatch):
    torch.manual_seed(1)
    weighing = Weighing(HEADS, HEAD_SIZE, "additive").double()
    query, keys = torch.randn(2, 7, HEADS, 3, HEAD_SIZE, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(7, 1, 1, 3, dtype=torch.float64)
    arriving = torch.randn(7, HEADS, 3, 3, dtype=torch.float64)
    inputs = [query, keys, *weighing.parameters()]
    at_once = weighing(query, keys, bias)
    expected = torch.autograd.grad(at_once, inputs, arriving)
    monkeypatch.setattr("seq2seq.model.attention_scores.MAX_ADDITIVE_ELEMENTS", 2 * HEADS * 3 * 3 * HEAD_SIZE)
    in_parts = weighing(query, keys, bias)
    torch.testing.assert_close(in_parts, at_once, rtol=0, atol=1e-12)
    for gradient, other in zip(torch.autograd.grad(in_parts, inputs, arriving), expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-12)


def test_a_window_includes_the_same_number_of_neighbours_on_each_side():
    seen = attention_mask(sentences_of((5,)), sentences_of((5,)), causal=False, window=2)[0, 0]
    assert seen.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize(("normalize", "selection"), [("softmax", "soft"), ("relu", "soft"), ("softmax", "hard"),
                                                      ("softmax", "structured")])
@every_score
@torch.no_grad()
def test_masked_positions_have_weight_zero(score, normalize, selection):
    torch.manual_seed(1)
    sentences, memory_sentences = sentences_of(QUERY_LENGTHS), sentences_of(KEY_LENGTHS)
    hidden, memory = torch.randn(13, D_MODEL, dtype=torch.float64), torch.randn(21, D_MODEL, dtype=torch.float64)
    kind = HardCrossAttention if selection == "hard" else CrossAttention
    cross = kind(D_MODEL, HEADS, weighing_of(score, "structured" if selection == "structured" else normalize)).double()
    weights = cross.weights_of(hidden, memory, sentences, memory_sentences)
    assert weights.shape == (4, HEADS, 7, 11)
    beyond = ~memory_sentences.token_mask[:, None, None].expand_as(weights)
    assert weights[beyond].eq(0).all() and weights.sum() > 0
    own = SelfAttention(D_MODEL, HEADS, weighing_of(score, normalize), window=2).double()
    weights = own.weights_of(hidden, sentences, causal=True)
    for row in range(7):
        assert weights[1, :, row, row + 1 :].eq(0).all() and weights[1, :, row, : max(0, row - 2)].eq(0).all()
        assert normalize == "relu" or weights[1, :, row].sum(-1) == pytest.approx([1] * HEADS)


# Hard attention


def test_hard_attention_samples_positions_with_the_probabilities_of_the_weights():
    torch.manual_seed(1)
    weights = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64).expand(20_011, 4)
    chosen, log_probability = select_position(weights, sample=True)
    left = (chosen == weights).all(1)
    # Within four standard deviations of a fair coin.
    assert abs(left.sum() - 20_011 / 2) < 4 * math.sqrt(20_011) / 2
    counts = chosen[~left].sum(0)
    expected = counts.sum() * weights[0, :3]
    # Chi-square with two degrees of freedom: 13.8 is exceeded once in a thousand seeds.
    assert ((counts[:3] - expected) ** 2 / expected).sum() < 13.8 and counts[3] == 0
    assert log_probability[left].eq(0).all() and set(chosen[~left].sum(1).tolist()) == {1}
    torch.testing.assert_close(log_probability[~left], (chosen * weights).sum(1).log()[~left])


def test_without_sampling_hard_attention_takes_the_most_probable_position():
    chosen, log_probability = select_position(torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]]), sample=False)
    assert chosen.tolist() == [[0, 1, 0], [1, 0, 0]] and log_probability is None


def test_hard_attention_attends_to_one_position_per_head():
    torch.manual_seed(1)
    layer, samples = HardCrossAttention(D_MODEL, HEADS).double().eval(), []
    layer.output = torch.nn.Identity()
    hidden, memory = torch.randn(2, D_MODEL, dtype=torch.float64), torch.randn(5, D_MODEL, dtype=torch.float64)
    output = layer(hidden, memory, sentences_of((2,)), sentences_of((5,)), samples).dense()
    values = layer.key_value(memory)[:, D_MODEL:].view(5, HEADS, HEAD_SIZE)
    best = layer.weights_of(hidden, memory, sentences_of((2,)), sentences_of((5,)))[0].argmax(-1)   # (heads, queries)
    for query in range(2):
        for head in range(HEADS):
            torch.testing.assert_close(output.view(2, HEADS, HEAD_SIZE)[query, head], values[best[head, query], head])
    assert not samples
    layer.train()(hidden, memory, sentences_of((2,)), sentences_of((5,)), samples)
    assert len(samples) == 1
