"""Hard attention: each head attends to a single source position, which is sampled in training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.data.batching import IGNORE_INDEX
from seq2seq.model.attention import CrossAttention, attention_weights, merge_beam_and_heads
from seq2seq.model.layers import Projected
from seq2seq.model.loss import Logits, LossSum
from seq2seq.model.packing import Sentences, pack, unpack
from seq2seq.model.transformer import DecoderLayer, Stream, Transformer
from seq2seq.model.variants.rnn import RecurrentModel, SourceAttention


@dataclass(frozen=True)
class HardAttentionSample:
    """Sample of source positions in hard attention, as `score_function_loss` needs it.

    log_probability: (target_tokens,), log p of the positions sampled for each target token, summed over the heads.
    baseline: (target_tokens,), predicted difference between log p of the target token and the mean log p of the other
        target tokens in the batch. The prediction does not depend on the sample.
    """

    log_probability: Tensor
    baseline: Tensor


@dataclass(frozen=True)
class SampledLogits(Logits):
    """Logits computed from sampled positions. sample: None if nothing was sampled, as outside of training."""

    sample: HardAttentionSample | None = None

    def with_own_terms(self, loss: LossSum, target: Tensor) -> LossSum:
        """Return the loss plus the score-function loss of the sample."""
        if self.sample is None:
            return loss
        return replace(loss, total=loss.total + score_function_loss(self.sample, loss.log_probabilities, target))


def score_function_loss(sample: HardAttentionSample, log_probabilities: Tensor, target: Tensor) -> Tensor:
    """Return the score-function (REINFORCE) loss of hard attention.

    With respect to the attention weights q, the gradient of this loss is an unbiased estimate of the gradient of
    -E[log p] (Williams 1992): d E[log p] = E[(log p - baseline) d log q(sample)]. The loss also contains half the
    squared error of the baseline. In a recurrent decoder, the loss ignores that a sample affects log p of later tokens.

    Args:
        log_probabilities: (tokens,), log p of the targets given the sampled positions.
        target: (tokens,) int64; targets of IGNORE_INDEX are ignored.
    """
    counted = target != IGNORE_INDEX
    # The learned baseline predicts only the difference from the mean log p of the other tokens, because Adam would need
    # a thousand steps to learn this mean.
    mean_of_others = (log_probabilities.sum() - log_probabilities) / (counted.sum() - 1).clamp(min=1)
    advantage = log_probabilities - mean_of_others - sample.baseline.float()
    terms = advantage.square() / 2 - advantage.detach() * sample.log_probability.float()
    return (terms * counted).sum()


class HardCrossAttention(CrossAttention):
    """Cross-attention in which each head attends to one source position.

    Outside of training, this is the position with the highest weight. In training, `select_position` samples positions,
    and a linear layer predicts the sample's baseline from the hidden state (Mnih and Gregor 2014, arXiv:1402.0030,
    section 2.3). `weights_of` returns the distribution from which positions are sampled.
    """

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

    pads = True

    def decode(self, target_input: Tensor, target: Sentences, memory: Tensor, source: Sentences) -> Logits:
        """See `Transformer.decode`. In training, the result contains the sample of the last layer."""
        stream = self.embed_target(target_input, target)
        for layer in self.decoder[:-1]:
            stream = layer(stream, memory, target, source)
        samples: list[HardAttentionSample] = []
        stream = self.decoder[-1](stream, memory, target, source, samples)
        return SampledLogits(stream.add(self.decoder_norm).inputs, self.output_weight, self.output_bias, *samples)


class HardSourceAttention(SourceAttention):
    """Attention of a recurrent decoder in which each head attends to one source position, as in `HardCrossAttention`.
    """

    def __init__(self, units: int, *arguments: Any, **options: Any) -> None:
        super().__init__(units, *arguments, **options)
        self.baseline = nn.Linear(units, 1)

    def select(self, weights: Tensor, query: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return one-hot weights, and in training the two numbers of a `HardAttentionSample`, (rows, 2)."""
        selected, log_probability = select_position(weights, self.training)
        if log_probability is None:
            return selected, None
        of_rows = merge_beam_and_heads(log_probability[..., None]).sum(1)
        return selected, torch.stack([of_rows, self.baseline(query.detach()).squeeze(1)], 1)


class HardAttentionRecurrentModel(RecurrentModel):
    """Recurrent model with a `HardSourceAttention`."""

    def logits(self, hidden: Tensor, reported: Tensor | None = None) -> Logits:
        """Return the logits with the sample. reported: numbers of each row from `HardSourceAttention.select`."""
        sample = None if reported is None else HardAttentionSample(*reported.unbind(1))
        return SampledLogits(hidden, self.output_weight, self.output_bias, sample)


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
