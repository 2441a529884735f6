"""Hard attention: each head attends to a single source position, which is sampled in training."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.model.attention import CrossAttention, attention_weights
from seq2seq.model.interface import HardAttentionSample, Logits
from seq2seq.model.layers import Projected
from seq2seq.model.packing import Sentences, pack, unpack
from seq2seq.model.transformer import DecoderLayer, Stream, Transformer


class HardCrossAttention(CrossAttention):
    """Cross-attention in which each head attends to one source position.

    Outside of training, this is the position with the highest weight. In training, `select_position` samples positions,
    and a linear layer predicts the sample's baseline from the hidden state (Mnih and Gregor 2014, arXiv:1402.0030,
    section 2.3). `weights_of` returns the distribution from which positions are sampled.
    """

    hard = True

    def __init__(self, d_model: int, *arguments: Any) -> None:
        super().__init__(d_model, *arguments)
        self.baseline = nn.Linear(d_model, 1)

    def forward(self, hidden: Tensor, memory: Tensor, sentences: Sentences, memory_sentences: Sentences,
                samples: list[HardAttentionSample] | None = None) -> Projected:
        """See `CrossAttention.forward`. In training, append the sample to `samples`."""
        projected = self._project(hidden, memory)
        weights = attention_weights(projected, sentences, memory_sentences, self.weighing)
        hard_weights, log_probability = select_position(weights, self.training)
        attended = pack(hard_weights @ unpack(projected[1], memory_sentences)[1], sentences)
        if samples is not None and log_probability is not None:
            samples.append(HardAttentionSample(pack(log_probability[..., None], sentences).flatten(1).sum(1),
                                               self.baseline(hidden.detach()).squeeze(1)))
        return Projected.of(self.output, attended.flatten(1))

    def _attend_to_source(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        return select_position(self.weighing(query, keys, bias), sample=False)[0] @ values


class HardDecoderLayer(DecoderLayer):
    """Decoder layer with hard cross-attention."""

    make_cross_attention = HardCrossAttention

    def forward(self, stream: Stream, memory: Tensor, sentences: Sentences, memory_sentences: Sentences,
                samples: list[HardAttentionSample] | None = None) -> Stream:
        """See `DecoderLayer.forward`. In training, append the sample of the attention to `samples`."""
        stream = self.self_residual(stream, lambda inputs: self.self_attention(inputs, sentences, causal=True))
        stream = self.cross_residual(stream, lambda inputs: self.cross_attention(
            inputs, memory, sentences, memory_sentences, samples=samples))
        return cast(Stream, self.feed_forward_residual(stream, self.feed_forward))


class HardAttentionTransformer(Transformer):
    """Transformer whose last decoder layer is a `HardDecoderLayer`."""

    def decode(self, target_input: Tensor, target: Sentences, memory: Tensor, source: Sentences) -> Logits:
        """See `Transformer.decode`. In training, the result contains the sample of the last layer."""
        stream = self._embed(self.target_embedding, self.target_positions, target_input, target.positions)
        for layer in self.decoder[:-1]:
            stream = layer(stream, memory, target, source)
        samples: list[HardAttentionSample] = []
        stream = self.decoder[-1](stream, memory, target, source, samples)
        return Logits(stream.add(self.decoder_norm).inputs, self.output_weight, self.output_bias, *samples)


def select_position(weights: Tensor, sample: bool) -> tuple[Tensor, Tensor | None]:
    """Select one key from each distribution over keys, `weights`, (…, keys).

    sample: False: select the most probable key. True: with probability 1/2, sample a key; in the other case, return
        the distribution unchanged (soft attention) and a log p of 0. With samples alone, attention gets hardly any
        gradient until the rest of the model uses attention's output (Xu et al. 2015, arXiv:1502.03044, section 4.1).
    Returns:
        One-hot or unchanged weights, (…, keys); and log p of the sampled keys, (…), or None if `sample` is False.
    """
    if not sample:
        return F.one_hot(weights.argmax(-1), weights.shape[-1]).to(weights.dtype), None
    # Among independent exponential variables x_i of rates weights[i], x_i is the smallest with probability weights[i].
    sampled = (torch.empty_like(weights).exponential_() / weights.detach()).argmin(-1, keepdim=True)
    log_probability = weights.gather(-1, sampled).clamp(min=torch.finfo(weights.dtype).tiny).log()
    keep_soft = torch.rand_like(log_probability) < 0.5
    selected = torch.where(keep_soft, weights, torch.zeros_like(weights).scatter_(-1, sampled, 1))
    return selected, log_probability.masked_fill(keep_soft, 0).squeeze(-1)
