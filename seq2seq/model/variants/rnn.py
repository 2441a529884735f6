"""The recurrent encoder-decoder with attention of Bahdanau et al. 2015 (arXiv:1409.0473).

    h = outputs of a bidirectional RNN over the source ("annotations")
    e_ti = a(s_{t-1}, h_i),  alpha_t = softmax(e_t),  c_t = sum_i alpha_ti h_i       (equations 5 and 6)
    s_t = f(s_{t-1}, [E y_{t-1}; c_t]),  p(y_t) = softmax(E' tanh(W [s_t; c_t; E y_{t-1}]))

In place of the paper's maxout layer, a tanh layer precedes the output layer, as in Luong et al. 2015 (arXiv:1508.04025,
equation 5).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from seq2seq.data.alignment_links import Kind
from seq2seq.data.batching import Batch
from seq2seq.model.attention import MakeWeighing, mask_to_bias, merge_beam_and_heads
from seq2seq.model.attention_scores import weighing_of
from seq2seq.model.attention_weights import AttentionMaps
from seq2seq.model.encoder_decoder import EncoderDecoder
from seq2seq.model.layers import Dropout, Lookup, linear
from seq2seq.model.loss import Logits
from seq2seq.model.packing import Sentences, pack_rows, unpack, unpack_rows


class Encoder(nn.Module):
    """Bidirectional GRU or LSTM. Its outputs, called annotations, are the concatenated outputs of both directions.

    outputs: width of the annotations; even. cell: "gru" or "lstm". dropout: probability, applied between layers.
    """

    def __init__(self, inputs: int, outputs: int, layers: int, cell: str, dropout: float) -> None:
        super().__init__()
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        self.recurrent = kind(inputs, outputs // 2, layers, batch_first=True, bidirectional=True,
                              dropout=dropout if layers > 1 else 0.0)

    def forward(self, embedded: Tensor, sentences: Sentences) -> Tensor:
        """(tokens, inputs) -> (tokens, outputs)"""
        lengths = sentences.lengths.clamp(min=1).cpu()                          # empty sentences may fill up a batch
        packed = pack_padded_sequence(unpack_rows(embedded, sentences), lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True, total_length=sentences.longest)
        return pack_rows(outputs, sentences)

    @staticmethod
    def last_backward_outputs(outputs: Tensor, sentences: Sentences) -> Tensor:
        """Return the last outputs of the backward direction: (tokens, outputs) -> (sentences, outputs / 2)"""
        begins = sentences.begins.long().clamp(max=len(outputs) - 1)            # empty sentences begin at the end
        return outputs[:, outputs.shape[1] // 2 :].index_select(0, begins)


class Cell(nn.Module):
    """GRU (Cho et al. 2014, in cuDNN's form) or LSTM (Hochreiter and Schmidhuber 1997) cell.

    The caller projects the input, because it can project the embeddings of all positions in one matrix product.

    gates: number of gates, candidate state included (GRU: 3, LSTM: 4). vectors: vectors per state (GRU: 1, LSTM: 2).
    """

    def __init__(self, cell: str, units: int) -> None:
        super().__init__()
        self.gates, self.vectors = (3, 1) if cell == "gru" else (4, 2)
        # All gates are initialised as one matrix. With one matrix per gate, initial weights of a GRU would be sqrt(2)
        # times as large, and the GRU would learn more slowly than torch.nn.GRU (tests/training/test_learning.py).
        self.recurrent = linear(units, self.gates * units)

    def forward(self, projected: Tensor, state: Tensor) -> Tensor:
        """Projected input (rows, gates * units), state (vectors, rows, units) -> new state; state[0] is the output."""
        recurrent = self.recurrent(state[0])
        if self.vectors == 1:
            reset_input, update_input, new_input = projected.chunk(3, 1)
            reset_state, update_state, new_state = recurrent.chunk(3, 1)
            new = (new_input + (reset_input + reset_state).sigmoid() * new_state).tanh()
            return torch.lerp(new, state[0], (update_input + update_state).sigmoid())[None]
        input_gate, forget_gate, new, output_gate = (projected + recurrent).chunk(4, 1)
        memory = forget_gate.sigmoid() * state[1] + input_gate.sigmoid() * new.tanh()
        return torch.stack([output_gate.sigmoid() * memory.tanh(), memory])


class SourceAttention(nn.Module):
    """Attention of the decoder over the annotations, with `num_heads` heads (the paper has one head).

    weighing: attention weights. projects: True to project query and key, with the paper's W_a and U_a; dot products are
    computed of the states themselves (Luong et al. 2015).
    """

    def __init__(self, units: int, num_heads: int, weighing: MakeWeighing, projects: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query: nn.Module = linear(units, units) if projects else nn.Identity()
        self.key: nn.Module = linear(units, units) if projects else nn.Identity()
        self.weighing = weighing(num_heads, units // num_heads)

    def start(self, memory: Tensor, sentences: Sentences) -> SourceMemory:
        """Compute keys and values from the annotations, (source_tokens, units)."""
        heads = (memory.shape[0], 1, self.num_heads, -1)
        keys, values = unpack(torch.cat([self.key(memory).view(heads), memory.view(heads)], 1), sentences)
        return SourceMemory(keys, values, mask_to_bias(sentences.token_mask[:, None, None], memory.dtype))

    def forward(self, query: Tensor, source: SourceMemory) -> tuple[Tensor, Tensor, Tensor | None]:
        """(rows, units) -> context (rows, units), attention weights (sentences, heads, beam, longest_source), and what
        `select` reports."""
        sentences, heads, _, head_size = source.keys.shape
        queries = self.weighing.prepare(self.query(query).view(sentences, -1, heads, head_size)).transpose(1, 2)
        weights = self.weighing(queries, source.keys, source.bias)
        used_weights, reported = self.select(weights, query)
        return merge_beam_and_heads(used_weights @ source.values), weights, reported

    def select(self, weights: Tensor, query: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weights with which the values are summed, here `weights`. Also return numbers of each row for the
        loss, (rows, numbers), or None. query: (rows, units)."""
        return weights, None


class SourceMemory(NamedTuple):
    """Annotations as keys and values of attention.

    keys, values: (sentences, heads, longest_source, head_size). bias: (sentences, 1, 1, longest_source), added to the
    scores: 0 for tokens, a large negative number for padding.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor


def plan_active_rows(sentences: Sentences) -> tuple[list[int], Tensor | None]:
    """Plan the number of sentences that the decoder computes at each target position in training.

    Finished sentences are removed only when they are at least a quarter of the computed sentences, because removal
    also takes time. On a GPU, none is removed, because the CPU would have to wait until the GPU has sent the lengths.

    Returns:
        The number of sentences computed at each position; and the order of the sentences in this computation, longest
        first, (sentences,), or None if the order is unchanged.
    """
    if sentences.lengths.is_cuda:
        return [len(sentences)] * sentences.longest, None
    lengths = sentences.lengths
    order = lengths.argsort(descending=True, stable=True)
    unfinished = (lengths > torch.arange(sentences.longest)[:, None]).sum(1).tolist()
    active_rows = [len(sentences)] * bool(unfinished)
    for rows in unfinished[1:]:
        # At least 1: `longest` may be rounded up, and then no sentence reaches the last positions.
        active_rows.append(max(1, rows) if rows <= 0.75 * active_rows[-1] else active_rows[-1])
    return active_rows, order


@dataclass(frozen=True)
class RecurrentState:
    """Decoding state.

    hidden: (layers, vectors, rows, units), states of the cells: h of a GRU, h and c of an LSTM.
    output: (rows, units), vector from which the last step computed logits; input feeding passes it to the next step.
    attention: (rows, longest_source), attention weights of the last step, averaged over the heads.
    """

    hidden: Tensor
    output: Tensor
    source: SourceMemory
    keep_attention: bool
    attention: Tensor | None = None

    def select(self, rows: Tensor) -> RecurrentState:
        sentences = len(self.source.bias)
        beam, flat, source = len(self.output) // sentences, rows.flatten(), self.source
        if len(rows) != sentences:
            source = SourceMemory(*(part.index_select(0, rows[:, 0] // beam) for part in source))
        attention = None if self.attention is None else self.attention.index_select(0, flat)
        return replace(self, hidden=self.hidden.index_select(2, flat), output=self.output.index_select(0, flat),
                       source=source, attention=attention)


class RecurrentModel(EncoderDecoder):
    """Recurrent encoder and decoder with attention, embeddings and output layer. `build_model` builds it from a recipe.

    Args:
        d_model: size of embeddings, annotations and decoder states; even.
        cell: "gru" or "lstm".
        decoder_layers: number of decoder layers. The query of attention is the state of the last layer; the context is
            an input of the first layer.
        attention: class of the attention layer. weighing, projects: see `SourceAttention`.
        input_feeding: True: each step also receives the last attentional state (Luong et al. 2015, section 3.3).
        dropout: probability, applied to embeddings, between layers and before the output layer.
        max_positions, tied_embeddings, scale_embedding, output_bias: as in `Transformer`.
    """

    def __init__(
        self, *, source_vocab_size: int, target_vocab_size: int, d_model: int, encoder_layers: int = 1,
        decoder_layers: int = 1, num_heads: int = 1, cell: str = "gru",
        attention: type[SourceAttention] = SourceAttention, weighing: MakeWeighing | None = None, projects: bool = True,
        input_feeding: bool = False, dropout: float = 0.0, max_positions: int = 1024, tied_embeddings: str = "all",
        scale_embedding: bool = True, output_bias: bool = False,
    ) -> None:
        super().__init__(source_vocab_size, target_vocab_size, d_model, max_positions, tied_embeddings, scale_embedding,
                         output_bias)
        self.dropout = Dropout(dropout)
        self.encoder = Encoder(d_model, d_model, encoder_layers, cell, dropout)
        weighing = weighing or weighing_of("additive", "softmax")
        self.attention = attention(d_model, num_heads, weighing, projects)
        cells = [Cell(cell, d_model) for _ in range(decoder_layers)]
        self.cells = nn.ModuleList(cells)
        gates, states = cells[0].gates, decoder_layers * cells[0].vectors
        self.first = linear(d_model // 2, states * d_model, fused=states)
        # Embedding and context are projected for the first cell (gates * d_model) and for the tanh layer before the
        # output layer (d_model). Input feeding also projects the last output of the tanh layer for the first cell.
        self.embedded_in = linear(d_model, (gates + 1) * d_model)
        self.context_in = linear(d_model, (gates + 1) * d_model)
        self.fed_in = linear(d_model, gates * d_model) if input_feeding else None
        self.between = nn.ModuleList(linear(d_model, gates * d_model) for _ in range(decoder_layers - 1))
        self.output = linear(d_model, d_model)

    def encode(self, source: Tensor, sentences: Sentences) -> tuple[Tensor, Sentences]:
        """(source_tokens,) -> annotations, (source_tokens, d_model), and the sentences they belong to."""
        return self.encoder(self._embed(self.source_embedding, source), sentences), sentences

    def _first_states(self, memory: Tensor, sentences: Sentences) -> Tensor:
        """Compute the decoder's first states, (layers, vectors, sentences, d_model), from the annotations: tanh(W_s
        h_1), where h_1 is the last state of the backward direction (section A.2.2)."""
        first = self.first(self.encoder.last_backward_outputs(memory, sentences)).tanh()
        return first.view(len(sentences), len(self.cells), -1, self.d_model).permute(1, 2, 0, 3).contiguous()

    def decode(self, target_input: Tensor, target: Sentences, memory: Tensor, source: Sentences) -> Logits:
        """(target_tokens,) -> logits, (target_tokens, vocab_size). memory, source: from `encode`."""
        hidden = self._first_states(memory, source)
        source_memory = self.attention.start(memory, source)
        embedded = self.embedded_in(self._embed(self.target_embedding, target_input))
        padded = unpack_rows(embedded, target)                                  # (sentences, longest_target, features)
        active_rows, order = plan_active_rows(target)
        if order is not None:
            padded, hidden = padded.index_select(0, order), hidden.index_select(2, order)
            source_memory = SourceMemory(*(part.index_select(0, order) for part in source_memory))
        output = memory.new_zeros(len(target), self.d_model)
        outputs, reports = [], []
        for position, rows in zip(padded.unbind(1), active_rows, strict=True):
            if rows < len(output):
                hidden, output = hidden[:, :, :rows], output[:rows]
                source_memory = SourceMemory(*(part[:rows] for part in source_memory))
            hidden, output, _, reported = self._advance(position[:rows], hidden, output, source_memory)
            outputs.append(output)
            if reported is not None:
                reports.append(reported)
        # token_rows: index of the row of each target token in the concatenated outputs, (target_tokens,).
        begins = torch.tensor([0, *active_rows[:-1]], device=memory.device).cumsum(0)
        token_rows = begins[target.positions] + (target.sentence if order is None else order.argsort()[target.sentence])
        hidden = self.dropout(torch.cat(outputs).index_select(0, token_rows))
        return self.logits(hidden, torch.cat(reports).index_select(0, token_rows) if reports else None)

    def logits(self, hidden: Tensor, reported: Tensor | None = None) -> Logits:
        """Return the logits of hidden states, (tokens, d_model). reported: numbers of each token from the attention
        layer, (tokens, numbers), see `SourceAttention.select`."""
        return Logits(hidden, self.output_weight, self.output_bias)

    def start_decoder(self, memory: Tensor, sentences: Sentences, keep_attention: bool) -> RecurrentState:
        """Return the state before the first step. memory, sentences: from `encode`."""
        return RecurrentState(self._first_states(memory, sentences), memory.new_zeros(len(sentences), self.d_model),
                              self.attention.start(memory, sentences), keep_attention)

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        output, after = self.step_decoder(last_tokens, state)
        return Logits(output, self.output_weight, self.output_bias).dense(), after

    def step_decoder(self, last_tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return the input of the output layer, (rows, d_model), and the state after the step."""
        embedded = self.embedded_in(self._embed(self.target_embedding, last_tokens))
        hidden, output, weights, _ = self._advance(embedded, state.hidden, state.output, state.source)
        attention = None
        if state.keep_attention:
            attention = merge_beam_and_heads(weights).unflatten(1, (weights.shape[1], -1)).mean(1)
        return self.dropout(output), replace(state, hidden=hidden, output=output, attention=attention)

    def _advance(self, embedded: Tensor, hidden: Tensor, output: Tensor,
                 source: SourceMemory) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Compute one position of every row.

        Args:
            embedded: (rows, (gates + 1) * d_model), projections of the last token's embedding for the first cell and
                for the tanh layer before the output layer.
            hidden: (layers, vectors, rows, d_model), states of the cells at the previous position.
            output: (rows, d_model), input of the output layer at the previous position.
        Returns:
            `hidden` and `output` at this position, the attention weights, and what the attention layer reports.
        """
        context, weights, reported = self.attention(hidden[-1, 0], source)
        inputs = embedded + self.context_in(context)
        projected, output_input = inputs[:, : -self.d_model], inputs[:, -self.d_model :]
        if self.fed_in is not None:
            projected = projected + self.fed_in(output)
        states: list[Tensor] = []
        for number, cell in enumerate(self.cells):
            if number:
                projected = self.between[number - 1](self.dropout(states[-1][0]))
            states.append(cell(projected, hidden[number]))
        output = (output_input + self.output(states[-1][0])).tanh()
        return torch.stack(states), output, weights, reported

    def unmasked_maps(self, batch: Batch, kinds: Collection[Kind], cross_layer: int | None) -> AttentionMaps:
        """See `Model.unmasked_maps`. There is one attention layer, whose weights of each step are recorded."""
        steps: list[Tensor] = []

        def record(module: Any, arguments: Any, outputs: tuple[Tensor, Tensor, Any]) -> None:
            steps.append(outputs[1])

        hook = self.attention.register_forward_hook(record)
        try:
            self(batch)
        finally:
            hook.remove()
        if "cross" not in kinds:
            return AttentionMaps([], [], [])
        targets = Sentences.from_offsets(batch.target_offsets, batch.longest_target)
        _, order = plan_active_rows(targets)
        order = torch.arange(len(targets), device=batch.source.device) if order is None else order
        padded = [weights.new_zeros(len(targets), *weights.shape[1:]).index_copy(0, order[: len(weights)], weights)
                  for weights in steps]                                         # a step omits finished sentences
        return AttentionMaps([], [], [torch.cat(padded, 2)])

    def _embed(self, embedding: Tensor, tokens: Tensor) -> Tensor:
        embedded: Tensor = Lookup.apply(embedding, tokens) * self.scale
        return self.dropout(embedded)
