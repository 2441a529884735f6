"""Equations and numbers from tutorials and papers, recomputed with the layers of this package."""

import math

import numpy as np
import torch

from seq2seq.model.attention import SelfAttention
from seq2seq.model.packing import Sentences
from seq2seq.model.transformer import EncoderLayer, Stream


def one_sentence(length):
    return Sentences.from_offsets(torch.tensor([0, length], dtype=torch.int32), length)


@torch.no_grad()
def test_the_worked_example_of_self_attention():
    # "The attention mechanism from scratch": the words [1,0,0], [0,1,0], [1,1,0], [0,0,1], numpy.random.seed(42), and
    # W_Q, W_K, W_V drawn in this order from randint(3, size=(3, 3)). It prints this matrix.
    random = np.random.RandomState(42)
    layer = SelfAttention(d_model=3, num_heads=1).double()
    matrices = [random.randint(3, size=(3, 3)) for _ in range(3)]
    layer.query_key_value.weight.copy_(torch.from_numpy(np.concatenate([matrix.T for matrix in matrices])))
    layer.output.weight.copy_(torch.eye(3))
    words = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float64)
    printed = [[0.98522025, 1.74174051, 0.75652026], [0.90965265, 1.40965265, 0.5],
               [0.99851226, 1.75849334, 0.75998108], [0.99560386, 1.90407309, 0.90846923]]
    torch.testing.assert_close(layer(words, one_sentence(4), causal=False).dense(),
                               torch.tensor(printed, dtype=torch.float64), rtol=0, atol=1e-8)


@torch.no_grad()
def test_an_encoder_layer_follows_its_equations():
    # Z = norm(H + MultiHead(H, H, H)); H' = norm(Z + FFN(Z)); head_m = att(W_q^m H, W_k^m H, W_v^m H), joined by W_o;
    # FFN(z) = W_2 ReLU(W_1 z + b_1) + b_2; norm(z) = gamma (z - mu) / sqrt(sigma^2 + epsilon) + beta.
    torch.manual_seed(1)
    length, d_model, heads = 5, 6, 2
    layer = EncoderLayer(d_model, heads, 11, 0.0, "relu", pre_norm=False).double()
    for parameter in layer.parameters():
        parameter.normal_()
    weights = {name: parameter.numpy() for name, parameter in layer.named_parameters()}

    def affine(name, z):
        return z @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name, z):
        mean, variance = z.mean(1, keepdims=True), z.var(1, keepdims=True)
        return weights[f"{name}.weight"] * (z - mean) / np.sqrt(variance + 1e-5) + weights[f"{name}.bias"]

    def head(query, key, value):
        scores = np.exp(query @ key.T / math.sqrt(d_model // heads))
        return scores / scores.sum(1, keepdims=True) @ value

    hidden = np.random.default_rng(1).normal(size=(length, d_model))
    projected = np.split(affine("self_attention.query_key_value", hidden), 3, axis=1)
    by_head = zip(*(np.split(each, heads, axis=1) for each in projected), strict=True)
    joined = np.concatenate([head(*each) for each in by_head], axis=1)
    attended = norm("self_residual.norm", hidden + affine("self_attention.output", joined))
    inner = np.maximum(affine("feed_forward.inner", attended), 0)
    expected = norm("feed_forward_residual.norm", attended + affine("feed_forward.outer", inner))
    output = layer(Stream(torch.from_numpy(hidden), torch.from_numpy(hidden)), one_sentence(length)).hidden
    torch.testing.assert_close(output, torch.from_numpy(expected), rtol=0, atol=1e-10)
