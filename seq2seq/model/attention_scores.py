"""Attention scores by name, and attention weights that are not softmax(q k / sqrt(head_size)).

A score of one's own is a `Score`, or just a function (queries, keys) -> scores. A package registers it as an entry
point of the group `seq2seq.attention_scores` (docs/models.md); recipes and bundles then name it in `model.score`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq.errors import UserError
from seq2seq.model.attention import MakeWeighing, ScaledDotProduct
from seq2seq.plug_ins import ATTENTION_SCORES, load_registered, package_of

# Maximum number of elements in the hidden layer of additive scores, (sentences, heads, queries, keys, head_size): 16 MB
# in fp32. If a batch needs more, its sentences are divided into chunks, which are computed one after another.
MAX_ADDITIVE_ELEMENTS = 4_000_000


@dataclass(frozen=True)
class Score:
    """Attention score of queries and keys.

    formula: function (queries, keys, weight) -> scores, (sentences, heads, queries, keys). queries: (sentences, heads,
        queries, head_size). keys: (sentences, heads, keys, head_size). None: the score is q' k / sqrt(head_size) for
        the query q' that `prepare` returns, so that fused kernels compute it.
    prepare: function (queries, weight) -> q', linear in the queries, (…, heads, head_size); None: q' = q.
    weight_shape: function (heads, head_size) -> shape of the learned weight, whose elements are drawn from a normal
        distribution with the variance 1 / head_size; None: the score has none, and `weight` is None.
    """

    formula: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None
    prepare: Callable[[Tensor, Tensor | None], Tensor] | None = None
    weight_shape: Callable[[int, int], tuple[int, ...]] | None = None


def dot(query: Tensor, weight: Tensor | None) -> Tensor:
    """q k (Luong et al. 2015, arXiv:1508.04025)"""
    return query * math.sqrt(query.shape[-1])


def bilinear(query: Tensor, weight: Tensor | None) -> Tensor:
    """q W k ("general" in Luong et al. 2015), with a W for each head"""
    return torch.einsum("...hd,hde->...he", query, cast(Tensor, weight)) * math.sqrt(query.shape[-1])


def additive(query: Tensor, keys: Tensor, weight: Tensor | None) -> Tensor:
    """v tanh(q + k) (Bahdanau et al. 2015, arXiv:1409.0473, section A.1.2), with a v for each head, (heads, head_size).
    The caller projects query and key with the paper's W_a and U_a."""
    def scores(chunk_queries: Tensor, chunk_keys: Tensor) -> Tensor:
        hidden = (chunk_queries[:, :, :, None] + chunk_keys[:, :, None]).tanh()
        return torch.einsum("shqkd,hd->shqk", hidden, cast(Tensor, weight))

    sentence_elements = query[0].numel() * keys.shape[2]
    chunk_size = max(1, MAX_ADDITIVE_ELEMENTS // max(1, sentence_elements))
    chunks = zip(query.split(chunk_size), keys.split(chunk_size), strict=True)
    # The hidden layer takes head_size times the memory of the scores. If it is large, the backward pass recomputes it.
    recompute = torch.is_grad_enabled() and sentence_elements * len(query) > MAX_ADDITIVE_ELEMENTS
    return torch.cat([cast(Tensor, checkpoint(scores, *chunk, use_reentrant=False)) if recompute else scores(*chunk)
                      for chunk in chunks])


SCORES = {
    "scaled_dot": Score(),                                                      # Vaswani et al. 2017
    "dot": Score(prepare=dot),
    "bilinear": Score(prepare=bilinear, weight_shape=lambda heads, size: (heads, size, size)),
    "additive": Score(additive, weight_shape=lambda heads, size: (heads, size)),
}
"""Scores of this package, by `model.score`."""


def score_named(name: str) -> Score:
    """Return the score with this name, of this package or of an installed one."""
    if name in SCORES:
        return SCORES[name]
    found = load_registered(ATTENTION_SCORES, name)
    if isinstance(found, Score):
        return found
    if not callable(found) or isinstance(found, type):
        raise UserError(f"{ATTENTION_SCORES}: '{name}' of the package {package_of(ATTENTION_SCORES, name)[0]} is "
                        "neither a function of queries and keys nor a Score.")
    return Score(lambda queries, keys, _: found(queries, keys))


class Weighing(ScaledDotProduct):
    """Layer that computes the attention weights of a query over keys: normalise(score(key, query)).

    score: name of a score. normalize: "softmax", or "relu", which sets negative scores to zero and does not scale
    positive ones.
    """

    def __init__(self, num_heads: int, head_size: int, score: str = "scaled_dot", normalize: str = "softmax") -> None:
        super().__init__(num_heads, head_size)
        self.score, self.normalize = score_named(score), normalize
        shape = self.score.weight_shape and self.score.weight_shape(num_heads, head_size)
        self.weight = nn.Parameter(torch.empty(shape).normal_(std=head_size**-0.5)) if shape else None

    @property
    def is_scaled_dot_product(self) -> bool:
        """True if the weights are softmax(q k / sqrt(head_size)) for the query q that `prepare` returns."""
        return self.score.formula is None and self.normalize == "softmax"

    def prepare(self, query: Tensor) -> Tensor:
        """Transform queries, (…, heads, head_size), for `forward`."""
        return self.score.prepare(query, self.weight) if self.score.prepare else query

    def make_projection(self, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return a function (rows, d_model) -> (rows, outputs). It applies the linear layer `layer`. Then it
        transforms the first outputs, heads * head_size, which are the queries, with `prepare`."""
        if self.score.prepare is None:
            return cast(Callable[[Tensor], Tensor], layer.forward)
        weight, bias = self.prepared_parameters(cast(nn.Linear, layer))
        return lambda hidden: F.linear(hidden, weight, bias)

    def prepared_parameters(self, layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
        """Return the weight and the bias of a linear layer that computes the same as `make_projection(layer)`. The bias
        is None if `layer` has none."""
        if self.score.prepare is None:
            return layer.weight, layer.bias
        # `prepare` is linear, so it can be applied once to the weight and the bias, instead of to each query.
        columns = layer.weight                                                  # (outputs, d_model), or one more column
        if layer.bias is not None:
            columns = torch.cat([columns, layer.bias[:, None]], 1)
        width = self.num_heads * self.head_size
        query_rows, other_rows = columns[:width], columns[width:]
        prepared = self.prepare(query_rows.T.reshape(-1, self.num_heads, self.head_size)).flatten(1).T
        columns = torch.cat([prepared, other_rows])
        return (columns, None) if layer.bias is None else (columns[:, :-1], columns[:, -1])

    @torch.no_grad()
    def fold_into(self, layer: nn.Linear) -> None:
        """Make `prepare` a part of the projection of the queries: later calls compute the same in fewer operators."""
        weight, bias = self.prepared_parameters(layer)
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
        if self.score.prepare is not None:
            self.score, self.weight = SCORES["scaled_dot"], None

    def forward(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        """See `ScaledDotProduct.forward`. query: from `prepare`."""
        scores = self.scores(query, keys, bias)
        return scores.relu() if self.normalize == "relu" else scores.softmax(-1)

    def scores(self, query: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        if self.score.formula is None:
            return super().scores(query, keys, bias)
        scores = self.score.formula(query, keys, self.weight)
        expected = (*query.shape[:3], keys.shape[2])
        if scores.shape != expected:
            raise UserError(f"model.score: the function returns scores of shape {tuple(scores.shape)} instead of "
                            f"(sentences, heads, queries, keys), here {expected}.")
        return scores + bias


def weighing_of(score: str, normalize: str) -> MakeWeighing:
    """Return the function that makes the layers of attention weights of this kind."""
    if (score, normalize) == ("scaled_dot", "softmax"):
        return ScaledDotProduct
    return partial(Weighing, score=score, normalize=normalize)
