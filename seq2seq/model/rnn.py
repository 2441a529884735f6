"""The recurrent encoder-decoder with attention of Bahdanau et al. 2015 (arXiv:1409.0473).

    h = bidirectional RNN over the source
    e_ti = a(s_{t-1}, h_i),  alpha_t = softmax(e_t),  c_t = sum_i alpha_ti h_i       (equations 5 and 6)
    s_t = f(s_{t-1}, [E y_{t-1}; c_t]),  p(y_t) = softmax(E' tanh(W [s_t; c_t; E y_{t-1}]))

Before the output layer it has a tanh, as in Luong et al. 2015 (arXiv:1508.04025, equation 5), instead of the paper's
maxout layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seq2seq.data.batching import Batch
from seq2seq.model.attention import Weighing, by_row, linear, select_position
from seq2seq.model.copy_mechanism import CopiedSource, CopyHead
from seq2seq.model.dropout import Dropout
from seq2seq.model.embedding import Lookup, embeddings
from seq2seq.model.interface import Choices, Logits, Mixture
from seq2seq.model.masks import bias_of
from seq2seq.model.packing import Sentences, pack, unpack


class Encoder(nn.Module):
    """Bidirectional GRU or LSTM. Each annotation is the concatenation of both directions.

    outputs: width of the annotations, half of it per direction. cell: "gru" or "lstm". dropout: between layers.
    """

    def __init__(self, inputs: int, outputs: int, layers: int, cell: str, dropout: float) -> None:
        super().__init__()
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        self.recurrent = kind(inputs, outputs // 2, layers, batch_first=True, bidirectional=True,
                              dropout=dropout if layers > 1 else 0.0)

    def forward(self, embedded: Tensor, sentences: Sentences) -> Tensor:
        """(tokens, inputs) -> (tokens, outputs)"""
        lengths = sentences.offsets.diff().clamp(min=1).cpu()                   # dummy sentences may be empty
        padded = unpack(embedded[:, None, None], sentences)[0, :, 0]            # (sentences, longest, inputs)
        packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        annotated, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True, total_length=sentences.longest)
        return pack(annotated[:, None], sentences).squeeze(1)


class Cell(nn.Module):
    """GRU (Cho et al. 2014, in cuDNN's form) or LSTM (Hochreiter and Schmidhuber 1997) cell with projected input.

    The caller projects the input, so that it can project the embeddings of all positions at once.

    gates: projected inputs per unit, 3 or 4. parts: vectors of the state, 1 or 2.
    """

    def __init__(self, cell: str, units: int) -> None:
        super().__init__()
        self.gates, self.parts = (3, 1) if cell == "gru" else (4, 2)
        # All gates are initialised as one matrix. With one initialisation per gate, whose range is larger by sqrt(2),
        # the model learned more slowly than torch.nn.GRU (tests/test_learning.py).
        self.recurrent = linear(units, self.gates * units)

    def forward(self, projected: Tensor, state: Tensor) -> Tensor:
        """(rows, gates * units), (parts, rows, units) -> (parts, rows, units); the first part is the output."""
        recurrent = self.recurrent(state[0])
        if self.parts == 1:
            reset, update, new = projected.chunk(3, 1)
            reset_before, update_before, new_before = recurrent.chunk(3, 1)
            new = (new + (reset + reset_before).sigmoid() * new_before).tanh()
            return torch.lerp(new, state[0], (update + update_before).sigmoid())[None]
        enter, forget, new, leave = (projected + recurrent).chunk(4, 1)
        content = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
        return torch.stack([leave.sigmoid() * content.tanh(), content])


class SourceAttention(nn.Module):
    """Attention of the decoder over the annotations, with `num_heads` heads (the paper has one).

    The additive score has the paper's W_a, U_a and v_a. The dot products do not project query and key; only the
    bilinear one has a parameter.
    """

    def __init__(self, units: int, num_heads: int, score: str, normalize: str, hard: bool) -> None:
        super().__init__()
        self.num_heads, self.hard = num_heads, hard
        additive = score == "additive"
        self.query: nn.Module = linear(units, units) if additive else nn.Identity()
        self.key: nn.Module = linear(units, units) if additive else nn.Identity()
        self.weighing = Weighing(num_heads, units // num_heads, score, normalize)
        if hard:
            self.baseline = nn.Linear(units, 1)

    def start(self, memory: Tensor, sentences: Sentences) -> Source:
        """Prepare the annotations, (source_tokens, units), for `forward`."""
        heads = (memory.shape[0], 1, self.num_heads, -1)
        keys, values = unpack(torch.cat([self.key(memory).view(heads), memory.view(heads)], 1), sentences)
        return Source(keys, values, bias_of(sentences.token_mask[:, None, None], memory.dtype))

    def weights(self, query: Tensor, source: Source) -> Tensor:
        """Attention weights: (rows, units) -> (sentences, heads, rows of a sentence, longest_source)"""
        sentences, heads, _, head_size = source.keys.shape
        queries = self.weighing.prepare(self.query(query).view(sentences, -1, heads, head_size)).transpose(1, 2)
        weights: Tensor = self.weighing(queries, source.keys, source.bias)
        return weights

    def forward(self, query: Tensor, source: Source) -> tuple[Tensor, Tensor, Choices | None]:
        """(rows, units) -> context (rows, units), weights, and the sampled positions in training with hard
        attention."""
        weights, choices = self.weights(query, source), None
        chosen = weights
        if self.hard:
            chosen, log_probability = select_position(weights, self.training)
            if log_probability is not None:
                choices = Choices(by_row(log_probability[..., None]).sum(1), self.baseline(query.detach()).squeeze(1))
        return by_row(chosen @ source.values), weights, choices


class Source(NamedTuple):
    """Annotations as keys and values of attention.

    keys, values: (sentences, heads, longest_source, head_size). bias: (sentences, 1, 1, longest_source), added to the
    scores: 0 for a token, a large negative number for padding.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor


def plan_active_rows(sentences: Sentences) -> tuple[list[int], Tensor | None]:
    """Plan a recurrent pass over targets of different length.

    Finished sentences are removed when at least a quarter of the remaining ones have ended, because removal costs time,
    too. On a GPU, where the host does not know the lengths, no sentence is removed.

    Returns:
        The number of sentences computed at each position, and the order of the sentences, (sentences,), longest first;
        None: unchanged.
    """
    if sentences.offsets.is_cuda:
        return [len(sentences)] * sentences.longest, None
    lengths = sentences.offsets.diff()
    order = lengths.argsort(descending=True, stable=True)
    left = (lengths > torch.arange(sentences.longest)[:, None]).sum(1).tolist()
    going_on = [len(sentences)] * bool(left)
    for rows in left[1:]:
        # `longest` may be rounded up, to positions that no sentence has.
        going_on.append(max(1, rows) if rows <= 0.75 * going_on[-1] else going_on[-1])
    return going_on, order


def _places(sentences: Sentences, going_on: list[int], order: Tensor | None) -> Tensor:
    """Return the row of each token, (tokens,) int64, in the concatenation of the computed positions."""
    device = sentences.offsets.device
    begins = torch.tensor([0, *going_on[:-1]], device=device).cumsum(0)
    rank = torch.arange(len(sentences), device=device) if order is None else order.argsort()
    return begins[sentences.positions] + rank[sentences.sentence]


@dataclass(frozen=True)
class RecurrentState:
    """Decoding state.

    hidden: (layers, parts, rows, units). output: (rows, units), input of the output layer in the last step, for input
        feeding.
    """

    hidden: Tensor
    output: Tensor
    source: Source
    longest_source: int
    keep_attention: bool
    attention: Tensor | None = None     # (rows, longest_source), mean over the heads
    copied: CopiedSource | None = None  # where pieces of the source can be copied

    def select(self, rows: Tensor) -> RecurrentState:
        """See `interface.State.select`."""
        sentences = len(self.source.bias)
        beam, flat, source, copied = self.output.shape[0] // sentences, rows.flatten(), self.source, self.copied
        if len(rows) != sentences:
            source = Source(*(part.index_select(0, rows[:, 0] // beam) for part in source))
            copied = copied and copied.select(rows[:, 0] // beam)
        attention = None if self.attention is None else self.attention.index_select(0, flat)
        return replace(self, hidden=self.hidden.index_select(2, flat), output=self.output.index_select(0, flat),
                       source=source, attention=attention, copied=copied)


class RecurrentModel(nn.Module):
    """Recurrent encoder and decoder with attention, embeddings and output layer. `build_model` builds it from a recipe.

    Args:
        d_model: size of embeddings, annotations and decoder states; even.
        cell: "gru" or "lstm". encoder_layers, decoder_layers: numbers of layers. The query of attention is the state of
            the last decoder layer; the context is an input of the first.
        score, normalize: see `attention.Weighing`. hard: attend to a single position, sampled in training.
        input_feeding: feed the attentional hidden state of a step to the next one (Luong et al. 2015, section 3.3).
        dropout: on embeddings, between layers and before the output layer.
        max_positions: tokens of the longest sentence.
        tied_embeddings, scale_embedding, output_bias, copy: as in `Transformer`.
    Raises:
        ValueError: all embeddings are tied, but the vocabularies differ in size.
    """

    def __init__(
        self, *, source_vocab_size: int, target_vocab_size: int, d_model: int, encoder_layers: int = 1,
        decoder_layers: int = 1, num_heads: int = 1, cell: str = "gru", score: str = "additive",
        normalize: str = "softmax", hard: bool = False, input_feeding: bool = False, dropout: float = 0.0,
        max_positions: int = 1024, tied_embeddings: str = "all", scale_embedding: bool = True,
        output_bias: bool = False, copy: bool = False,
    ) -> None:
        super().__init__()
        self.d_model, self.max_positions, self.input_feeding = d_model, max_positions, input_feeding
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.target_embedding, self.source_embedding, self.output_weight = embeddings(
            tied_embeddings, source_vocab_size, target_vocab_size, d_model)
        self.output_bias = nn.Parameter(torch.zeros(target_vocab_size)) if output_bias else None
        self.vocabulary: nn.Module | None = None                                # set by inference/eager.py
        self.dropout = Dropout(dropout)
        self.encoder = Encoder(d_model, d_model, encoder_layers, cell, dropout)
        self.attention = SourceAttention(d_model, num_heads, score, normalize, hard)
        self.cells = nn.ModuleList(Cell(cell, d_model) for _ in range(decoder_layers))
        gates, parts = (3, 1) if cell == "gru" else (4, 2)
        self.first = linear(d_model // 2, decoder_layers * parts * d_model, fused=decoder_layers * parts)
        # Inputs of the first cell and of the output layer: the embedding, the context and the fed-back state have a
        # projection each.
        self.embedded_in = linear(d_model, (gates + 1) * d_model)
        self.context_in = linear(d_model, (gates + 1) * d_model)
        self.fed_in = linear(d_model, gates * d_model) if input_feeding else None
        self.between = nn.ModuleList(linear(d_model, gates * d_model) for _ in range(decoder_layers - 1))
        self.output = linear(d_model, d_model)
        self.copying = CopyHead(d_model) if copy else None

    def encode(self, source: Tensor, sentences: Sentences) -> tuple[Tensor, Tensor]:
        """(source_tokens,) -> annotations (source_tokens, d_model), first decoder states (layers, parts, sentences,
        d_model).

        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """
        self._check_length(sentences.longest)
        memory = self.encoder(self._embed(self.source_embedding, source), sentences)
        # tanh(W_s h_1), with h_1 the last state of the backward direction (section A.2.2).
        begins = sentences.offsets[:-1].long().clamp(max=len(memory) - 1)
        ends = memory[:, self.d_model // 2 :].index_select(0, begins)
        first = self.first(ends).tanh().view(len(sentences), len(self.cells), -1, self.d_model)
        return memory, first.permute(1, 2, 0, 3).contiguous()

    def forward(self, batch: Batch) -> Logits | Mixture:
        """Score every target position: (target_tokens, vocab_size), as an unevaluated product (see `Logits`).

        Raises:
            ValueError: a sentence is longer than `max_positions`.
        """
        self._check_length(batch.longest_target)
        sentences = Sentences(batch.target_offsets, batch.target_positions, batch.longest_target)
        memory, hidden = self.encode(batch.source, sentences_of_source := Sentences(
            batch.source_offsets, batch.source_positions, batch.longest_source))
        source = self.attention.start(memory, sentences_of_source)
        embedded = self.embedded_in(self._embed(self.target_embedding, batch.target_input))
        by_position = unpack(embedded[:, None, None], sentences)[0, :, 0]       # (sentences, longest_target, features)
        going_on, order = plan_active_rows(sentences)
        if order is not None:
            by_position, hidden = by_position.index_select(0, order), hidden.index_select(2, order)
            source = Source(*(part.index_select(0, order) for part in source))
        output = memory.new_zeros(len(sentences), self.d_model)
        outputs, drawn = [], []
        for position, rows in zip(by_position.unbind(1), going_on, strict=True):
            if rows < len(output):
                hidden, output = hidden[:, :, :rows], output[:rows]
                source = Source(*(part[:rows] for part in source))
            hidden, output, _, choices = self._advance(position[:rows], hidden, output, source)
            outputs.append(output)
            drawn.append(choices)
        places = _places(sentences, going_on, order)
        choices = None
        if drawn[0] is not None:
            each = torch.cat([torch.stack([some.log_probability, some.baseline], 1) for some in drawn if some])
            choices = Choices(*each.index_select(0, places).unbind(1))
        logits = replace(self._logits(torch.cat(outputs).index_select(0, places)), choices=choices)
        if self.copying is None:
            return logits
        return self.copying(logits, memory, batch.source, sentences, sentences_of_source)

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> RecurrentState:
        """See `interface.Seq2Seq.start`."""
        sentences = Sentences.from_offsets(source_offsets, longest_source)
        memory, hidden = self.encode(source, sentences)
        return RecurrentState(hidden, memory.new_zeros(len(sentences), self.d_model),
                              self.attention.start(memory, sentences), longest_source, keep_attention,
                              copied=self.copying.start(memory, source, sentences) if self.copying else None)

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """See `interface.Seq2Seq.step`."""
        embedded = self.embedded_in(self._embed(self.target_embedding, last_tokens))
        hidden, output, weights, _ = self._advance(embedded, state.hidden, state.output, state.source)
        attention = by_row(weights).unflatten(1, (weights.shape[1], -1)).mean(1) if state.keep_attention else None
        logits = self.vocabulary(self.dropout(output)) if self.vocabulary else self._logits(output).dense()
        if self.copying is not None and state.copied is not None:
            logits = self.copying.step(output, logits, state.copied)
        return logits, replace(state, hidden=hidden, output=output, attention=attention)

    def _advance(self, embedded: Tensor, hidden: Tensor, output: Tensor,
                 source: Source) -> tuple[Tensor, Tensor, Tensor, Choices | None]:
        """Compute one position of every row.

        Args:
            embedded: (rows, (gates + 1) * d_model), projections of the last token's embedding for the first cell and
                for the output.
            hidden: (layers, parts, rows, d_model). output: (rows, d_model). Both of the previous position.
        Returns:
            hidden and output of this position, the attention weights, and the positions sampled by hard attention.
        """
        context, weights, choices = self.attention(hidden[-1, 0], source)
        entering = embedded + self.context_in(context)
        projected, leaving = entering[:, : -self.d_model], entering[:, -self.d_model :]
        if self.fed_in is not None:
            projected = projected + self.fed_in(output)
        states: list[Tensor] = []
        for number, cell in enumerate(self.cells):
            if number:
                projected = self.between[number - 1](self.dropout(states[-1][0]))
            states.append(cell(projected, hidden[number]))
        output = (leaving + self.output(states[-1][0])).tanh()
        return torch.stack(states), output, weights, choices

    def _embed(self, embedding: Tensor, tokens: Tensor) -> Tensor:
        embedded: Tensor = Lookup.apply(embedding, tokens) * self.scale
        return self.dropout(embedded)

    def _logits(self, output: Tensor) -> Logits:
        return Logits(self.dropout(output), self.output_weight, self.output_bias)

    def _check_length(self, length: int) -> None:
        if length > self.max_positions:
            raise ValueError(f"a sentence of {length} tokens; this model has {self.max_positions} positions")
