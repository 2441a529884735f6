"""Copy mechanism (See et al. 2017) for names and numbers that do not occur in the training data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.data.batching import IGNORE_INDEX, Batch
from seq2seq.model.attention import ScaledDotProduct, mask_to_bias
from seq2seq.model.interface import State
from seq2seq.model.layers import linear
from seq2seq.model.loss import Logits, LossSum, chunks, log_probabilities
from seq2seq.model.packing import Sentences, check_length, pack, source_and_target, unpack
from seq2seq.tokenizers.tokenizer import END_ID


@dataclass(frozen=True)
class CopyMixture:
    """Mixture of the distribution over the vocabulary and the copy distribution over source pieces.

    See et al. 2017 (arXiv:1704.04368, equation 9): p(y) = g p_vocabulary(y) + (1 - g) sum_{i: x_i = y} a_i

    logits: logits of p_vocabulary. gate_logit: (tokens,), logit of g. weights: (tokens, longest_source), a; each row
        sums to 1. pieces: (tokens, longest_source) int64, x: token ids of the source sentence of each target token.
    """

    logits: Logits
    gate_logit: Tensor
    weights: Tensor
    pieces: Tensor

    def loss(self, target: Tensor, tokens: int, label_smoothing: float = 0.0) -> LossSum:
        """Return the negative log-likelihood of the targets. A recipe with label smoothing is refused."""
        counted = target != IGNORE_INDEX
        targets = target.where(counted, END_ID)                                 # any id: it counts nowhere
        generated: Tensor = _ChunkedLogProbability.apply(self.logits.hidden, self.logits.weight, self.logits.bias,
                                                         targets)
        copied = self.copy_probability(targets).to(generated.dtype)
        # Clamped, because tokens that do not occur in the source have a copy probability of 0, and log 0 = -inf.
        copied = copied.clamp(min=torch.finfo(copied.dtype).tiny).log()
        gate_logit = self.gate_logit.to(generated.dtype)
        found = torch.logaddexp(F.logsigmoid(gate_logit) + generated, F.logsigmoid(-gate_logit) + copied)
        found = found.where(counted, 0.0)
        return self.logits.with_own_terms(LossSum(-found.sum(), found.detach(), tokens), target)

    def copy_probability(self, target: Tensor) -> Tensor:
        """Return sum_{i: x_i = y} a_i for the target token y of each row: (tokens,) -> (tokens,)"""
        return (self.weights * (self.pieces == target[:, None])).sum(1)

    def dense(self) -> Tensor:
        """Return log p of all ids, (tokens, vocab_size), without gradient."""
        return mixture_log_probabilities(self.logits.dense(), self.gate_logit, self.weights, self.pieces)


@torch.no_grad()
def mixture_log_probabilities(logits: Tensor, gate_logit: Tensor, weights: Tensor, pieces: Tensor) -> Tensor:
    """Return log p of all ids under a `CopyMixture`, (rows, vocab_size).

    logits: logits of p_vocabulary, (rows, vocab_size). Other arguments: as in `CopyMixture`.
    """
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
    log_generate, log_copy = (F.logsigmoid(gate.to(log_probabilities.dtype))[:, None]
                              for gate in (gate_logit, -gate_logit))
    log_probabilities += log_generate
    # Copying changes only the probabilities of ids that occur in the source.
    copied = torch.zeros_like(log_probabilities).scatter_add_(1, pieces, weights.to(log_probabilities.dtype))
    mixed = torch.logaddexp(log_probabilities.gather(1, pieces), copied.gather(1, pieces).log() + log_copy)
    return log_probabilities.scatter_(1, pieces, mixed)


class _ChunkedLogProbability(torch.autograd.Function):
    """log p of each target, (tokens,), from logits computed in chunks.

    The backward pass recomputes the logits, because their gradient depends on d loss / d log p, which the forward pass
    does not know.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        found, log_normaliser = log_probabilities(Logits(hidden, weight, bias), target)
        ctx.save_for_backward(hidden, weight, bias, target, log_normaliser)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        hidden, weight, bias, target, log_normaliser = ctx.saved_tensors
        hidden_gradient = torch.empty_like(hidden)
        weight_gradient = torch.zeros(weight.shape, dtype=log_normaliser.dtype, device=weight.device)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=log_normaliser.dtype)
        for rows in chunks(len(target), weight):
            # d log p / d logits = one-hot - softmax
            logits = Logits(hidden[rows], weight, bias).dense().to(log_normaliser.dtype)
            logits_gradient = logits.sub_(log_normaliser[rows, None]).exp_().mul_(-gradient[rows, None])
            logits_gradient.scatter_add_(1, target[rows, None], gradient[rows, None])
            rounded = logits_gradient.to(hidden.dtype)
            torch.mm(rounded, weight, out=hidden_gradient[rows])
            weight_gradient += rounded.T @ hidden[rows]
            if bias_gradient is not None:
                bias_gradient += logits_gradient.sum(0)
        if bias_gradient is not None:
            bias_gradient = bias_gradient.to(bias.dtype)
        return hidden_gradient, weight_gradient.to(weight.dtype), bias_gradient, None


class CopySource(NamedTuple):
    """Encoded source of the copy mechanism. `CopyHead` defines w_h and h.

    keys: (sentences, 1, longest_source, d_model). gate_terms: (sentences, longest_source), w_h h of each source token.
    pieces: (sentences, longest_source) int64, source token ids.
    bias: (sentences, 1, 1, longest_source), added to the scores: 0 for tokens that can be copied, a large negative
        number for others.
    """

    keys: Tensor
    gate_terms: Tensor
    pieces: Tensor
    bias: Tensor

    def select(self, sentences: Tensor) -> CopySource:
        """Return the encoded source of some sentences. sentences: indices of these sentences, (selected,)."""
        return CopySource(*(part.index_select(0, sentences) for part in self))


class CopyHead(nn.Module):
    """Layer that computes a copy distribution over the source tokens, and a gate (see `CopyMixture`).

    The copy distribution `a` comes from a separate attention head. Its query is the decoder state s before the output
    layer, and its keys are projections of the encoder states h. Therefore `a` always sums to 1, and the decoder's
    cross-attention may be of any kind (hard, ReLU, many heads) and may use kernels that do not return weights. The gate
    is g = sigmoid(w_s s + w_h sum_i a_i h_i + b) (See et al. 2017, arXiv:1704.04368, equation 8, but without the term
    for the decoder input, because s already depends on the decoder input).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = linear(d_model, d_model)
        self.key = linear(d_model, d_model)
        self.weighing = ScaledDotProduct(1, d_model)
        self.of_state = nn.Linear(d_model, 1)                                   # w_s and b
        self.of_source = nn.Linear(d_model, 1, bias=False)                      # w_h

    def forward(self, logits: Logits, memory: Tensor, source: Tensor, target_sentences: Sentences,
                source_sentences: Sentences) -> CopyMixture:
        """Return the mixture for every target position.

        Args:
            logits: logits over the vocabulary; `logits.hidden` is s.
            memory: (source_tokens, d_model), h. source: (source_tokens,), token ids.
        """
        copy_source = self.start(memory, source, source_sentences)
        queries = unpack(self.query(logits.hidden)[:, None, None], target_sentences)[0]
        weights = pack(self.weighing(queries, copy_source.keys, copy_source.bias), target_sentences).squeeze(1)
        gate_terms, pieces = (part.index_select(0, target_sentences.sentence)
                              for part in (copy_source.gate_terms, copy_source.pieces))
        gate_logit = self.of_state(logits.hidden).squeeze(1) + (weights * gate_terms).sum(1)
        return CopyMixture(logits, gate_logit, weights, pieces)

    def start(self, memory: Tensor, source: Tensor, sentences: Sentences) -> CopySource:
        """Encode the source for `step`. memory: (source_tokens, d_model), h. source: (source_tokens,), token ids."""
        flat = torch.cat([self.key(memory), self.of_source(memory)], 1)
        padded = unpack(flat[:, None, None], sentences)[0]                      # (sentences, 1, longest, d_model + 1)
        # If `</s>` could be copied, finished hypotheses would fill the beam. Only a source of `</s>` alone allows it.
        copyable_tokens = (sentences.lengths - 1).clamp(min=1)
        copyable = torch.arange(sentences.longest, device=source.device) < copyable_tokens[:, None]
        bias = mask_to_bias(copyable[:, None, None], memory.dtype)
        return CopySource(padded[..., :-1], padded[:, 0, :, -1], source[sentences.padded_tokens], bias)

    def step(self, hidden: Tensor, logits: Tensor, copy_source: CopySource) -> Tensor:
        """Return log p of the mixture, (rows, vocab_size). hidden: (rows, d_model), s. logits: (rows, vocab_size)."""
        sentences, beam = len(copy_source.keys), len(hidden) // len(copy_source.keys)
        queries = self.query(hidden).view(sentences, 1, beam, -1)
        weights = cast(Tensor, self.weighing(queries, copy_source.keys, copy_source.bias)).view(len(hidden), -1)
        gate_terms, pieces = (part.repeat_interleave(beam, 0) for part in (copy_source.gate_terms, copy_source.pieces))
        gate_logit = self.of_state(hidden).squeeze(1) + (weights * gate_terms).sum(1)
        return mixture_log_probabilities(logits, gate_logit, weights, pieces)


@dataclass(frozen=True)
class CopyState:
    """Decoding state of a `CopyingModel`. decoder: state of the same model without copying. beam: rows per sentence."""

    decoder: State
    source: CopySource
    beam: int = 1

    @property
    def attention(self) -> Tensor | None:
        return self.decoder.attention

    def select(self, rows: Tensor) -> CopyState:
        all_remain = len(rows) == len(self.source.keys)
        source = self.source if all_remain else self.source.select(rows[:, 0] // self.beam)
        return CopyState(self.decoder.select(rows), source, rows.shape[1])


class CopyingModel(nn.Module):
    """Copy mechanism of a model, as a base class that precedes the model's class. `build_transformer` and
    `build_recurrent_model` add `copying`."""

    pads = True
    copying: CopyHead
    # Attributes of a model that the mechanism needs: see `Transformer`.
    max_positions: int
    output_weight: nn.Parameter
    output_bias: nn.Parameter | None
    encode: Callable[[Tensor, Sentences], tuple[Tensor, Sentences]]
    decode: Callable[[Tensor, Sentences, Tensor, Sentences], Logits]
    start_decoder: Callable[[Tensor, Sentences, bool], State]
    step_decoder: Callable[..., tuple[Tensor, State]]

    def forward(self, batch: Batch) -> CopyMixture:
        source, target = source_and_target(batch, self.max_positions)
        memory, source = self.encode(batch.source, source)
        logits = self.decode(batch.target_input, target, memory, source)
        return cast(CopyMixture, self.copying(logits, memory, batch.source, target, source))

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> CopyState:
        check_length(longest_source, self.max_positions)
        memory, sentences = self.encode(source, Sentences.from_offsets(source_offsets, longest_source, len(source)))
        return CopyState(self.start_decoder(memory, sentences, keep_attention),
                         self.copying.start(memory, source, sentences))

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: CopyState, **options: Any) -> tuple[Tensor, CopyState]:
        """See `interface.Stepwise.step`. options: of the model's own `step`."""
        hidden, decoder = self.step_decoder(last_tokens, state.decoder, **options)
        logits = Logits(hidden, self.output_weight, self.output_bias).dense()
        return self.copying.step(hidden, logits, state.source), replace(state, decoder=decoder)
