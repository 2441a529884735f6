"""Plain PyTorch reference models: `torch.nn.Transformer`, and `torch.nn.GRU` with attention.

They are written as in a textbook: padded batches, masks, logits of every position, and in the recurrent model a loop
over the target tokens. `train_steps` is a plain training loop for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from seq2seq.data.batching import IGNORE_INDEX, Batch, EncodedCorpus, gather, split_by_length
from seq2seq.errors import UserError
from seq2seq.model.layers import sinusoids
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import Recipe, TrainingSection
from seq2seq.tokenizers.tokenizer import START_ID
from seq2seq.training.optimizers import learning_rate


def padded(flat: Tensor, offsets: Tensor, value: int = START_ID) -> tuple[Tensor, Tensor]:
    """Pad packed tokens, (tokens,), with `value`. Return (sentences, longest), and its mask: 1 = not padding."""
    lengths = offsets.diff()
    rows = pad_sequence(list(flat.split(lengths.tolist())), batch_first=True, padding_value=value)
    return rows, (torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]).long()


class PlainTransformer(nn.Module):
    """`torch.nn.Transformer` with sinusoidal positions and one matrix for both embeddings and the output layer.

    Weights have PyTorch's initialisation, except for the embedding. As in fairseq, its weights are normally distributed
    with standard deviation 1/sqrt(d_model).

    stock: True to keep what PyTorch adds to the model of Vaswani et al. 2017: dropout on attention weights and inside
        the feed-forward sublayer, and a norm after the last layer of a post-norm model. False to remove these
        additions: as in seq2seq's model, only embeddings and the output of each sublayer have dropout, and only
        pre-norm models end with a norm.
    """

    def __init__(self, section: Any, vocab_size: int, stock: bool = False) -> None:
        super().__init__()
        pre_norm = section.norm == "pre"
        self.layers = nn.Transformer(section.d_model, section.num_heads, section.encoder_layers,
                                     section.decoder_layers, section.feed_forward, section.dropout, batch_first=True,
                                     norm_first=pre_norm)
        if not stock:
            if not pre_norm:
                self.layers.encoder.norm = None
                self.layers.decoder.norm = None
            for layer in (*self.layers.encoder.layers, *self.layers.decoder.layers):
                layer.dropout.p = layer.self_attn.dropout = 0.0
            for layer in self.layers.decoder.layers:
                layer.multihead_attn.dropout = 0.0
        self.embedding = nn.Embedding(vocab_size, section.d_model)
        nn.init.normal_(self.embedding.weight, std=section.d_model**-0.5)
        self.dropout = section.dropout
        self.register_buffer("positions", sinusoids(section.max_positions, section.d_model), persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens: (sentences, length) -> (sentences, length, d_model)."""
        positions = cast(Tensor, self.positions)[: tokens.shape[1]]
        scaled = self.embedding(tokens) * self.embedding.embedding_dim**0.5 + positions
        return F.dropout(scaled, self.dropout, self.training)

    def forward(self, source: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        """Return logits, (sentences, target length, vocab_size).

        source, mask: (sentences, source length), 1 = not padding. inputs: (sentences, target length).
        """
        weight = self.embedding.weight
        causal = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], weight.device, weight.dtype)
        hidden = self.layers(self.embed(source), self.embed(inputs), tgt_mask=causal, tgt_is_causal=True,
                             src_key_padding_mask=mask == 0, memory_key_padding_mask=mask == 0)
        return cast(Tensor, hidden @ weight.T)

    @torch.no_grad()
    def copy_weights(self, ours: Transformer) -> None:
        """Copy the weights of a model of the same size whose embeddings are all tied."""
        parameters = dict(self.named_parameters())
        weights: dict[str, Tensor] = {"embedding.weight": ours.target_embedding}
        for side, layers in (("encoder", ours.encoder), ("decoder", ours.decoder)):
            for number, each in enumerate(layers):
                layer: Any = each                                               # of the encoder or of the decoder
                stem = f"layers.{side}.layers.{number}"
                norms = [layer.self_residual.norm, layer.feed_forward_residual.norm]
                attentions = {"self_attn": ([layer.self_attention.query_key_value], layer.self_attention.output)}
                if side == "decoder":
                    cross = layer.cross_attention
                    norms.insert(1, layer.cross_residual.norm)
                    attentions["multihead_attn"] = ([cross.query, cross.key_value], cross.output)
                for name, (projections, output) in attentions.items():
                    for kind in ("weight", "bias"):
                        in_projection = [getattr(projection, kind) for projection in projections]
                        weights[f"{stem}.{name}.in_proj_{kind}"] = torch.cat(in_projection)
                        weights[f"{stem}.{name}.out_proj.{kind}"] = getattr(output, kind)
                named = {"linear1": layer.feed_forward.inner, "linear2": layer.feed_forward.outer,
                         **{f"norm{number}": norm for number, norm in enumerate(norms, 1)}}
                weights |= {f"{stem}.{name}.{kind}": getattr(module, kind)
                            for name, module in named.items() for kind in ("weight", "bias")}
            if f"layers.{side}.norm.weight" in parameters:
                norm = getattr(ours, f"{side}_norm")
                weights |= {f"layers.{side}.norm.weight": norm.weight, f"layers.{side}.norm.bias": norm.bias}
        assert weights.keys() == parameters.keys(), weights.keys() ^ parameters.keys()
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


class PlainRecurrent(nn.Module):
    """Encoder-decoder of Bahdanau et al. 2015 (arXiv:1409.0473) with `torch.nn.GRU`, `torch.nn.GRUCell` and PyTorch's
    initialisation.

    It has one layer on each side, one head of additive attention, and one matrix for both embeddings and the output.
    """

    def __init__(self, section: Any, vocab_size: int) -> None:
        super().__init__()
        width = section.d_model
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.first = nn.Linear(width // 2, width)
        self.query, self.key, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.cell = nn.GRUCell(2 * width, width)
        self.output = nn.Linear(3 * width, width)
        self.embedding = nn.Embedding(vocab_size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.dropout = section.dropout

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens: (sentences, length) -> (sentences, length, d_model)."""
        return F.dropout(self.embedding(tokens) * self.embedding.embedding_dim**0.5, self.dropout, self.training)

    def forward(self, source: Tensor, mask: Tensor, inputs: Tensor) -> Tensor:
        """Return logits, (sentences, target length, vocab_size). The arguments are those of `PlainTransformer`."""
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(source), mask.sum(1).cpu(), batch_first=True,
                                                   enforce_sorted=False)
        memory, _ = nn.utils.rnn.pad_packed_sequence(self.encoder(packed)[0], batch_first=True)
        keys = self.key(memory)
        state = self.first(memory[:, 0, memory.shape[2] // 2 :]).tanh()
        outputs = []
        for word in self.embed(inputs).unbind(1):
            scores = self.score((self.query(state)[:, None] + keys).tanh()).squeeze(2)
            weights = scores.masked_fill(mask == 0, float("-inf")).softmax(1)   # (sentences, source length)
            context = (weights[:, :, None] * memory).sum(1)
            state = self.cell(torch.cat([word, context], 1), state)
            outputs.append(self.output(torch.cat([state, context, word], 1)).tanh())
        hidden = F.dropout(torch.stack(outputs, 1), self.dropout, self.training)
        return hidden @ self.embedding.weight.T


# The only supported values of these keys of the recipe: for the reference models of one type, for all reference models,
# and for their training loop. Recipes with other values are refused.
SUPPORTED: dict[str, dict[str, Any]] = {
    "transformer": {"activation": "relu", "positions": "sinusoidal", "window": None, "score": "scaled_dot"},
    "rnn": {"encoder_layers": 1, "decoder_layers": 1, "num_heads": 1, "cell": "gru", "input_feeding": False,
            "score": "additive"},
}
SUPPORTED_BY_ALL = {"normalize": "softmax", "selection": "soft", "copy": False, "tied_embeddings": "all",
                    "scale_embedding": True, "output_bias": False}
SUPPORTED_BY_LOOP = {"optimizer": "adam", "weight_decay": 0.0, "accumulation": 1}


def plain_model(recipe: Recipe, vocab_size: int) -> PlainTransformer | PlainRecurrent:
    """Return the reference model with the size of a recipe's model and random weights.

    Raises:
        UserError: the reference models or their training loop do not support a value of the recipe.
    """
    model = recipe.model
    if model.type not in SUPPORTED:
        raise UserError(f"model.type: {model.type} has no plain reference; choose {' or '.join(SUPPORTED)}")
    for name, section, supported in (("model", model, SUPPORTED[model.type] | SUPPORTED_BY_ALL),
                                     ("training", recipe.training, SUPPORTED_BY_LOOP)):
        for key, value in supported.items():
            if (found := getattr(section, key)) != value:
                raise UserError(f"{name}.{key}: the plain reference supports only {value}, found {found}")
    kind = PlainTransformer if model.type == "transformer" else PlainRecurrent
    return kind(model, vocab_size)


def plain_loss(model: nn.Module, batch: Batch, label_smoothing: float, reduction: str = "mean") -> Tensor:
    """Return the label-smoothed cross-entropy of a batch: mean or sum over its target tokens."""
    source, mask = padded(batch.source, batch.source_offsets)
    inputs, _ = padded(batch.target_input, batch.target_offsets)
    labels, _ = padded(batch.target_output, batch.target_offsets, IGNORE_INDEX)
    return F.cross_entropy(model(source, mask, inputs).flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX,
                           label_smoothing=label_smoothing, reduction=reduction)


def train_steps(model: nn.Module, corpus: EncodedCorpus, steps: Iterable[list[np.ndarray]],
                section: TrainingSection) -> Iterator[tuple[float, int]]:
    """Train with PyTorch's Adam and gradient clipping. Yield the summed loss and number of target tokens of each step.

    steps: for each step, a list of one micro-batch, which has the indices of the pairs. The micro-batch is split into
        groups of sentences of similar length, so that they need little padding.
    """
    optimizer = torch.optim.Adam(model.parameters(), betas=section.betas, eps=section.epsilon)
    device = next(model.parameters()).device
    for number, (indices,) in enumerate(steps, 1):
        batches = [gather(corpus, group).to(device) for group in split_by_length(corpus, indices)]
        tokens, total = sum(batch.target_count for batch in batches), 0.0
        for batch in batches:
            loss = plain_loss(model, batch, section.label_smoothing, "sum")
            (loss / tokens).backward()
            total += loss.item()
        if section.gradient_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), section.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(section, number)
        optimizer.step()
        optimizer.zero_grad()
        yield total, tokens
