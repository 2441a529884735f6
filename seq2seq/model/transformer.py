"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.model.attention import CrossAttention, MakeWeighing, ScaledDotProduct, SelfAttention, mask_to_bias
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.kernels import usable_in_16_bits
from seq2seq.model.kv_cache import LayerCache, TransformerState
from seq2seq.model.layers import LAYER_GAIN, POSITION_TABLES, Dropout, Lookup, Projected, linear, make_norm
from seq2seq.model.loss import Logits
from seq2seq.model.packing import Sentences
from seq2seq.model.relative_positions import RelativePositions
from seq2seq.tokenizers.tokenizer import START_ID, SYMBOLS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
KERNEL_ACTIVATIONS = ("relu", "gelu", "silu")
"""Activations that the kernel of the sublayer computes."""


class FeedForward(nn.Module):
    """Feed-forward sublayer, FFN(z) = W_2 activation(W_1 z + b_1) + b_2 (equation 2).

    gated: True for a gate: FFN(z) = W_2 (activation(W_g z + b_g) * (W_1 z + b_1)) + b_2 (Shazeer 2020,
        arXiv:2002.05202). bias: False for linear layers without biases.
    """

    def __init__(self, d_model: int, feed_forward: int, activation: str, gated: bool = False, bias: bool = True
                 ) -> None:
        super().__init__()
        self.inner = linear(d_model, feed_forward, gain=LAYER_GAIN, bias=bias)
        self.outer = linear(feed_forward, d_model, gain=LAYER_GAIN, bias=bias)
        self.gate = linear(d_model, feed_forward, gain=LAYER_GAIN, bias=bias) if gated else None
        self.activation, self.activation_name = ACTIVATIONS[activation], activation
        self.has_kernel = bias and not gated and activation in KERNEL_ACTIVATIONS

    def forward(self, hidden: Tensor) -> Projected:
        """(…, d_model) -> (…, d_model)"""
        if self.has_kernel and usable_in_16_bits(hidden):
            from seq2seq.model.kernels.activation import activated

            return Projected.of(self.outer, activated(hidden, self.inner.weight, self.inner.bias, self.activation_name))
        if self.gate is not None:
            return Projected.of(self.outer, self.activation(self.gate(hidden)) * self.inner(hidden))
        return Projected.of(self.outer, self.activation(self.inner(hidden)))

    def make_step_function(self) -> Callable[[Tensor], Tensor]:
        """Return a function that computes the same as `forward`, but faster, because it does not look up modules."""
        inner, activation, outer = self.inner.forward, self.activation, self.outer.forward
        if self.gate is not None:
            gate = self.gate.forward
            return lambda hidden: outer(activation(gate(hidden)) * inner(hidden))
        return lambda hidden: outer(activation(inner(hidden)))


class Stream(NamedTuple):
    """Residual stream between two sublayers.

    With pre-norm, the output of a sublayer is added when the norm of the next sublayer reads the stream, because one
    kernel does both.

    hidden: (rows, d_model), the stream, without `output`.
    inputs: (rows, d_model), inputs of the next sublayer; with post-norm the same as `hidden`, but separate results of
        the kernel, which adds their gradients.
    seed: seed of the dropout masks of a pass, see `kernels.dropout`; None without these kernels. number: number of
        masks that have been drawn. A tied layer is computed several times, with a mask of its own each time.
    output: output of the last sublayer, to be added to `hidden` with `dropout`; None: nothing is to be added.
    """

    hidden: Tensor
    inputs: Tensor
    seed: Tensor | None = None
    number: int = 0
    output: Projected | None = None
    dropout: Dropout | None = None

    def add(self, norm: nn.Module, pre_norm: bool = True) -> Stream:
        """Add `output` to the stream. `inputs` of the result is the norm of the sum; with post-norm, it is the stream,
        too."""
        if self.output is None or self.dropout is None:
            return self._replace(inputs=norm(self.inputs))
        if isinstance(norm, nn.LayerNorm) and usable_in_16_bits(self.hidden):
            from seq2seq.model.kernels.residual_norm import residual_norm

            hidden, inputs = residual_norm(self.hidden, *self.output, norm.weight, norm.bias, norm.eps, pre_norm,
                                           self.dropout.current_probability, self.seed, self.number)
        else:
            summed = self.hidden + self.dropout(self.output.dense())
            inputs = norm(summed)
            hidden = summed if pre_norm else inputs
        return Stream(hidden, inputs, self.seed, self.number + 1)


def embed(embedding: Tensor, encodings: Tensor, tokens: Tensor, positions: Tensor, scale: float,
          dropout: Dropout, norm: nn.Module | None = None) -> Stream:
    """Return dropout(norm(scale * embedding + positional encoding)) of tokens, (tokens,), as a residual stream.

    embedding: (vocab_size, d_model). encodings: (max_positions, d_model). norm: None: there is none.
    """
    if not usable_in_16_bits(embedding):
        hidden = Lookup.apply(embedding, tokens) * scale + Lookup.apply(encodings, positions)
        hidden = dropout(hidden if norm is None else norm(hidden))
        return Stream(hidden, hidden)
    from seq2seq.model.kernels import embedding as embedding_kernels
    from seq2seq.model.kernels.dropout import draw_seed

    probability = dropout.current_probability
    seed = draw_seed(embedding.device) if probability else None
    if norm is None:
        return Stream(*embedding_kernels.embed(embedding, encodings, tokens, positions, scale, probability, seed), seed,
                      1)
    embedded, _ = embedding_kernels.embed(embedding, encodings, tokens, positions, scale, 0.0, None)
    hidden = dropout(norm(embedded))
    return Stream(hidden, hidden, seed)


class Residual(nn.Module):
    """Residual connection, dropout and norm around a sublayer f. norm_type: see `make_norm`.

    post-norm: norm(x + dropout(f(x))), as in the paper (section 3.1); pre-norm: x + dropout(f(norm(x))).
    """

    def __init__(self, d_model: int, dropout: float, pre_norm: bool, norm_type: str = "layer") -> None:
        super().__init__()
        self.norm = make_norm(norm_type, d_model)
        self.dropout = Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(self, stream: Stream, sublayer: Callable[[Tensor], Projected]) -> Stream:
        """Add the output of the sublayer to the stream. sublayer: (rows, d_model) -> (rows, d_model)."""
        if self.pre_norm:
            stream = stream.add(self.norm)                                      # the output of the sublayer before
        stream = stream._replace(output=sublayer(stream.inputs), dropout=self.dropout)
        return stream if self.pre_norm else stream.add(self.norm, pre_norm=False)

    def sublayer_input(self, hidden: Tensor) -> Tensor:
        """Return the input of the sublayer, (rows, d_model)."""
        return cast(Tensor, self.norm(hidden)) if self.pre_norm else hidden

    def make_step_function(self, sublayer: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function step(hidden, *arguments) that computes the same as `forward`, but without dropout.

        `arguments` are further arguments of `sublayer`. The step overwrites the tensor that `sublayer` returns.
        """
        norm: Callable[[Tensor], Tensor] = self.norm.forward
        if isinstance(self.norm, nn.LayerNorm):
            norm = partial(torch.layer_norm, normalized_shape=self.norm.normalized_shape, weight=self.norm.weight,
                           bias=self.norm.bias, eps=self.norm.eps)
        if self.pre_norm:
            return lambda hidden, *arguments: sublayer(norm(hidden), *arguments).add_(hidden)
        return lambda hidden, *arguments: norm(sublayer(hidden, *arguments).add_(hidden))


StepFunction = Callable[..., Any]
"""Function that computes one decoding step of a layer (see `make_step_function` of the layers)."""


class EncoderLayer(nn.Module):
    """Encoder layer. With post-norm: Z = norm(H + MultiHead(H, H, H)); H' = norm(Z + FFN(Z)). Pre-norm: see `Residual`.

    causal: True to mask the keys after the position of the query, as in the layers of a language model. relative,
        head_size, bias: see `SelfAttention`. norm_type: see `make_norm`. gated: see `FeedForward`.
    """

    def __init__(self, d_model: int, num_heads: int, feed_forward: int, dropout: float, activation: str,
                 pre_norm: bool, weighing: MakeWeighing = ScaledDotProduct, window: int | None = None,
                 causal: bool = False, relative: RelativePositions | None = None, head_size: int | None = None,
                 bias: bool = True, norm_type: str = "layer", gated: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.self_attention = SelfAttention(d_model, num_heads, weighing, window, relative, head_size, bias)
        self.feed_forward = FeedForward(d_model, feed_forward, activation, gated, bias)
        self.self_residual = Residual(d_model, dropout, pre_norm, norm_type)
        self.feed_forward_residual = Residual(d_model, dropout, pre_norm, norm_type)

    def forward(self, stream: Stream, sentences: Sentences) -> Stream:
        """(tokens, d_model) -> (tokens, d_model)"""
        stream = self.self_residual(stream, lambda inputs: self.self_attention(inputs, sentences, causal=self.causal))
        return cast(Stream, self.feed_forward_residual(stream, self.feed_forward))

    def make_step_function(self) -> StepFunction:
        """Return the function that computes one position of each row. The layer must be causal.

        The modules are looked up here, because looking them up in each step takes a fifth of single-sentence decoding.

        step(hidden, cache, new_slots, bias):
            hidden: (rows, d_model)
            new_slots: see `SelfAttention.make_step_function`.
            bias: (sentences, heads, beam, slots), see `TransformerState.target_bias`.
        """
        attend = self.self_residual.make_step_function(self.self_attention.make_step_function())
        transform = self.feed_forward_residual.make_step_function(self.feed_forward.make_step_function())

        def step(hidden: Tensor, cache: LayerCache, new_slots: slice | Tensor, bias: Tensor) -> Tensor:
            slots = bias.shape[3]
            return transform(attend(hidden, cache.keys[:, :, :slots], cache.values[:, :, :slots], new_slots, bias))

        return step


class DecoderLayer(nn.Module):
    """Decoder layer. With post-norm: I = norm(H + masked MultiHead(H, H, H)); Z = norm(I + MultiHead(I, memory,
    memory)); H' = norm(Z + FFN(Z)). Pre-norm: see `Residual`.

    cross_weighing: weights of cross-attention; None: `weighing`. Other arguments: see `EncoderLayer`.
    """

    make_cross_attention: type[CrossAttention] = CrossAttention

    def __init__(self, d_model: int, num_heads: int, feed_forward: int, dropout: float, activation: str,
                 pre_norm: bool, weighing: MakeWeighing = ScaledDotProduct, window: int | None = None,
                 cross_weighing: MakeWeighing | None = None, relative: RelativePositions | None = None,
                 head_size: int | None = None, bias: bool = True, norm_type: str = "layer", gated: bool = False
                 ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(d_model, num_heads, weighing, window, relative, head_size, bias)
        self.cross_attention = self.make_cross_attention(d_model, num_heads, cross_weighing or weighing, head_size,
                                                         bias)
        self.feed_forward = FeedForward(d_model, feed_forward, activation, gated, bias)
        self.self_residual = Residual(d_model, dropout, pre_norm, norm_type)
        self.cross_residual = Residual(d_model, dropout, pre_norm, norm_type)
        self.feed_forward_residual = Residual(d_model, dropout, pre_norm, norm_type)

    def forward(self, stream: Stream, memory: Tensor, sentences: Sentences, memory_sentences: Sentences) -> Stream:
        """(target_tokens, d_model), (source_tokens, d_model) -> (target_tokens, d_model)"""
        stream = self.self_residual(stream, lambda inputs: self.self_attention(inputs, sentences, causal=True))
        stream = self.cross_residual(stream, lambda inputs: self.cross_attention(inputs, memory, sentences,
                                                                                 memory_sentences))
        return cast(Stream, self.feed_forward_residual(stream, self.feed_forward))

    def make_step_function(self) -> StepFunction:
        """Return the function that computes one position of every row.

        step(hidden, cache, new_slots, target_bias, source_bias): see `EncoderLayer.make_step_function`.
            source_bias: (sentences, heads, 1, longest_source), 0 for source tokens, -inf for padding.
        The step returns the layer's output, (rows, d_model), and the layer's residual stream before cross-attention,
        (rows, d_model).
        """
        attend_to_target = self.self_residual.make_step_function(self.self_attention.make_step_function())
        attend_to_source = self.cross_residual.make_step_function(self.cross_attention.make_step_function())
        transform = self.feed_forward_residual.make_step_function(self.feed_forward.make_step_function())

        def step(hidden: Tensor, cache: LayerCache, new_slots: slice | Tensor, target_bias: Tensor,
                 source_bias: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = (part[:, :, : target_bias.shape[3]] for part in (cache.keys, cache.values))
            attended = attend_to_target(hidden, keys, values, new_slots, target_bias)
            hidden = attend_to_source(attended, cache.memory_keys, cache.memory_values, source_bias)
            return transform(hidden), attended

        return step


class Transformer(EncoderDecoder):
    """Transformer encoder and decoder with embeddings and output layer. `build_model` builds it from a recipe.

    Args:
        source_vocab_size, target_vocab_size: must be equal if all embeddings are tied.
        tied_embeddings: "all" (source embedding, target embedding and output layer share one matrix), "decoder" (target
            embedding and output layer share one matrix), "inputs" (source and target embedding do), "none".
        scale_embedding: True to multiply embeddings by sqrt(d_model) (section 3.4).
        positions: positional encoding, "learned" or one of `POSITION_TABLES`; or "relative", see `RelativePositions`.
        max_positions: maximum length of a sentence in tokens, `</s>` included.
        weighing: attention weights of every layer.
        window: maximum distance between query and key in self-attention; None: no limit.
        decoder_start: symbol whose embedding the decoder reads first, one of `SYMBOLS`.
        embedding_norm: True for a norm of the sum of embedding and positional encoding.
        norm_type: kind of all norms, see `make_norm`. Other arguments: see `EncoderLayer`.
    """

    pads = False

    def __init__(
        self, *, source_vocab_size: int, target_vocab_size: int, d_model: int, encoder_layers: int,
        decoder_layers: int, num_heads: int, feed_forward: int, dropout: float = 0.0, activation: str = "relu",
        pre_norm: bool = False, positions: str = "sinusoidal", max_positions: int = 1024,
        tied_embeddings: str = "all", scale_embedding: bool = True, output_bias: bool = False,
        weighing: MakeWeighing = ScaledDotProduct, window: int | None = None, decoder_start: str = "<s>",
        embedding_norm: bool = False, norm_type: str = "layer", gated: bool = False, bias: bool = True,
        head_size: int | None = None,
    ) -> None:
        super().__init__(source_vocab_size, target_vocab_size, d_model, max_positions, tied_embeddings, scale_embedding,
                         output_bias)
        self.num_heads, self.head_size = num_heads, head_size or d_model // num_heads
        if positions == "learned":
            self.source_positions: Tensor = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=d_model**-0.5))
            self.target_positions: Tensor = nn.Parameter(torch.empty(max_positions, d_model).normal_(std=d_model**-0.5))
        else:
            table = POSITION_TABLES[positions](max_positions, d_model)
            self.register_buffer("source_positions", table, persistent=False)
            self.register_buffer("target_positions", self.source_positions, persistent=False)
        self.start_id = SYMBOLS[decoder_start]
        self.dropout = Dropout(dropout)
        self.source_embedding_norm = make_norm(norm_type, d_model) if embedding_norm else None
        self.target_embedding_norm = make_norm(norm_type, d_model) if embedding_norm else None
        self.source_relative = RelativePositions(num_heads, causal=False) if positions == "relative" else None
        self.target_relative = RelativePositions(num_heads, causal=True) if positions == "relative" else None
        self.window = window
        layer = (d_model, num_heads, feed_forward, dropout, activation, pre_norm, weighing, window)
        form: dict[str, Any] = {"head_size": head_size, "bias": bias, "norm_type": norm_type, "gated": gated}
        self.encoder = nn.ModuleList(EncoderLayer(*layer, relative=self.source_relative, **form)
                                     for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*layer, relative=self.target_relative, **form)
                                     for _ in range(decoder_layers))
        self.encoder_norm = make_norm(norm_type, d_model) if pre_norm else nn.Identity()
        self.decoder_norm = make_norm(norm_type, d_model) if pre_norm else nn.Identity()

    def encode(self, source: Tensor, sentences: Sentences) -> tuple[Tensor, Sentences]:
        """(source_tokens,) -> the states that cross-attention attends to, (source_tokens, d_model), and the sentences
        they belong to."""
        stream = embed(self.source_embedding, self.source_positions, source, sentences.positions, self.scale,
                       self.dropout, self.source_embedding_norm)
        for layer in self.encoder:
            stream = layer(stream, sentences)
        return stream.add(self.encoder_norm).inputs, sentences

    def decode(self, target_input: Tensor, target: Sentences, memory: Tensor, source: Sentences) -> Logits:
        """(target_tokens,) -> logits, (target_tokens, vocab_size). memory, source: from `encode`."""
        stream = self.embed_target(target_input, target)
        for layer in self.decoder:
            stream = layer(stream, memory, target, source)
        return Logits(stream.add(self.decoder_norm).inputs, self.output_weight, self.output_bias)

    def decoder_input(self, tokens: Tensor) -> Tensor:
        """Return target tokens of any shape with the symbol `decoder_start` in the place of `<s>`."""
        return tokens if self.start_id == START_ID else tokens.masked_fill(tokens == START_ID, self.start_id)

    def embed_target(self, target_input: Tensor, sentences: Sentences) -> Stream:
        """Return the residual stream before the first decoder layer. Arguments: see `decode`."""
        return embed(self.target_embedding, self.target_positions, self.decoder_input(target_input),
                     sentences.positions, self.scale, self.dropout, self.target_embedding_norm)

    def embed_step(self, last_tokens: Tensor, position: int | Tensor) -> Tensor:
        """Return the input of the first decoder layer in a decoding step, (rows, d_model). last_tokens: (rows,).
        position: of these tokens, or (1,)."""
        embedded = self.target_embedding.index_select(0, self.decoder_input(last_tokens))
        hidden = embedded.mul_(self.scale).add_(self.target_positions[position])
        return hidden if self.target_embedding_norm is None else cast(Tensor, self.target_embedding_norm(hidden))

    def start_decoder(self, memory: Tensor, sentences: Sentences, keep_attention: bool) -> TransformerState:
        """Return the state before the first step. memory, sentences: from `encode`."""
        projected = [cast(DecoderLayer, layer).cross_attention.start(memory, sentences) for layer in self.decoder]
        caches = tuple(LayerCache(keys[:, :, :0], values[:, :, :0], keys, values) for keys, values in projected)
        bias = mask_to_bias(sentences.token_mask[:, None], memory.dtype, -math.inf)
        return TransformerState(caches, bias[:, :, :0], bias[:, None].repeat(1, self.num_heads, 1, 1), keep_attention)

    @property
    def has_plain_decoder(self) -> bool:
        return type(self) is Transformer                                        # a subclass may compute something else

    @property
    def cross_attentions(self) -> Sequence[CrossAttention]:
        return [cast(DecoderLayer, layer).cross_attention for layer in self.decoder]

    def make_step_function(self) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
        steps = [cast(DecoderLayer, layer).make_step_function() for layer in self.decoder]
        return partial(self.step, steps=steps)

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: TransformerState,
             steps: Sequence[StepFunction] | None = None) -> tuple[Tensor, TransformerState]:
        """See `interface.Stepwise.step`. steps: the step function of each layer; None: make them in this call."""
        hidden, after = self.step_decoder(last_tokens, state, steps)
        return Logits(hidden, self.output_weight, self.output_bias).dense(), after

    def step_decoder(self, last_tokens: Tensor, state: TransformerState,
                     steps: Sequence[StepFunction] | None = None) -> tuple[Tensor, TransformerState]:
        """Return the input of the output layer, (rows, d_model), and the state after the step."""
        after = state.with_next_position()
        hidden = self.embed_step(last_tokens, state.position)
        target_bias = after.target_bias(self.num_heads, self.window)
        if self.target_relative is not None:
            target_bias += self.target_relative.of_step(after)
        steps = steps or [cast(DecoderLayer, layer).make_step_function() for layer in self.decoder]
        for step, cache in zip(steps, after.caches, strict=True):
            hidden, before_source = step(hidden, cache, slice(state.slots, after.slots), target_bias, after.source_bias)
        attention = None
        if state.keep_attention:
            last = cast(DecoderLayer, self.decoder[-1])
            attention = last.cross_attention.weights(last.cross_residual.sublayer_input(before_source),
                                                     after.caches[-1].memory_keys, after.source_bias).mean(1)
        return self.decoder_norm(hidden), replace(after, attention=attention)
