"""Attention weights that are not softmax(q k / sqrt(head_size)): other scores and other normalisations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq.model.attention import ScaledDotProduct
from seq2seq.model.structured_attention import chain_marginals

# Maximum number of elements in the hidden layer of additive scores, (sentences, heads, queries, keys, head_size): 16 MB
# in fp32. If a batch needs more, its sentences are divided into chunks, which are computed one after another.
MAX_ADDITIVE_ELEMENTS = 4_000_000


class Weighing(ScaledDotProduct):
    """Layer that computes the attention weights of a query over keys: normalise(score(key, query)).

    Args:
        score: "scaled_dot", q k / sqrt(head_size) (Vaswani et al. 2017); "dot", q k (Luong et al. 2015,
            arXiv:1508.04025); "bilinear", q W k ("general" in Luong et al.); "additive", v tanh(q + k) (Bahdanau et al.
            2015, arXiv:1409.0473, section A.1.2; the caller projects query and key with the paper's W_a and U_a). Each
            head has its own W ("bilinear") or v ("additive").
        normalize: "softmax"; "relu", which sets negative scores to zero and does not scale positive ones; or
            "structured", the marginals of a linear chain, whose pairwise potentials each head learns
            (`structured_attention`).
    """

    def __init__(self, num_heads: int, head_size: int, score: str = "scaled_dot", normalize: str = "softmax") -> None:
        super().__init__(num_heads, head_size)
        self.score, self.normalize = score, normalize
        shape = {"bilinear": (num_heads, head_size, head_size), "additive": (num_heads, head_size)}.get(score)
        self.weight = nn.Parameter(torch.empty(shape).normal_(std=head_size**-0.5)) if shape else None
        self.pairwise = nn.Parameter(torch.zeros(num_heads, 1, 2, 2)) if normalize == "structured" else None

    @property
    def is_scaled_dot_product(self) -> bool:
        """True if the weights are softmax(q k / sqrt(head_size)) for the query q that `prepare` returns."""
        return self.score != "additive" and self.normalize == "softmax"

    def prepare(self, query: Tensor) -> Tensor:
        """Transform queries, (…, heads, head_size), so that their scaled dot product with a key is the score.

        If the score is additive, return the queries unchanged.
        """
        if self.score == "bilinear":
            query = torch.einsum("...hd,hde->...he", query, cast(Tensor, self.weight))
        return query * math.sqrt(query.shape[-1]) if self.score in ("dot", "bilinear") else query

    def make_projection(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return a function (rows, d_model) -> (rows, outputs). It applies the linear layer `layer`. Then it
        transforms the first d_model outputs, which are the queries, with `prepare`."""
        if self.score in ("scaled_dot", "additive"):
            return cast(Callable[[Tensor], Tensor], layer.forward)
        weight, bias = self.prepared_parameters(cast(nn.Linear, layer))
        return lambda hidden: F.linear(hidden, weight, bias)

    def prepared_parameters(self, layer: nn.Linear) -> tuple[Tensor, Tensor]:
        if self.score in ("scaled_dot", "additive"):
            return layer.weight, layer.bias
        # `prepare` is linear, so it can be applied once to the weight and the bias, instead of to each query.
        columns = torch.cat([layer.weight, layer.bias[:, None]], 1)             # (outputs, d_model + 1)
        query_rows, other_rows = columns[: layer.in_features], columns[layer.in_features :]
        prepared = self.prepare(query_rows.T.reshape(layer.in_features + 1, self.num_heads, -1)).flatten(1).T
        columns = torch.cat([prepared, other_rows])
        return columns[:, :-1], columns[:, -1]

    def forward(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """See `ScaledDotProduct.forward`. query: from `prepare`."""
        scores = self.scores(query, keys, bias)
        if self.pairwise is not None:
            exact, is_key = torch.promote_types(scores.dtype, torch.float32), (bias == 0).expand(scores.shape)
            return chain_marginals(scores.to(exact), self.pairwise.to(exact), is_key).to(scores.dtype)
        return scores.relu() if self.normalize == "relu" else scores.softmax(-1)

    def scores(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        if self.score == "additive":
            return additive(query, keys, cast(Tensor, self.weight)) + bias
        return super().scores(query, keys, bias)


def additive(query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Return the additive scores v tanh(q + k), (sentences, heads, queries, keys).

    query: (sentences, heads, queries, head_size). keys: (sentences, heads, keys, head_size). weight: v, (heads,
        head_size).
    """
    def scores(chunk_queries: Tensor, chunk_keys: Tensor) -> Tensor:
        hidden = (chunk_queries[:, :, :, None] + chunk_keys[:, :, None]).tanh()
        return torch.einsum("shqkd,hd->shqk", hidden, weight)

    sentence_elements = query[0].numel() * keys.shape[2]
    chunk_size = max(1, MAX_ADDITIVE_ELEMENTS // max(1, sentence_elements))
    chunks = zip(query.split(chunk_size), keys.split(chunk_size), strict=True)
    # The hidden layer takes head_size times the memory of the scores. If it is large, the backward pass recomputes it.
    recompute = torch.is_grad_enabled() and sentence_elements * len(query) > MAX_ADDITIVE_ELEMENTS
    return torch.cat([cast(Tensor, checkpoint(scores, *chunk, use_reentrant=False)) if recompute else scores(*chunk)
                      for chunk in chunks])
