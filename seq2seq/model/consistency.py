"""Consistency training: the predictions of two passes over the same batch should agree.

R-Drop (Wu et al. 2021, arXiv:2106.14448, equations 1 to 4): the passes differ by their dropout masks. L = -log p(y) -
log q(y) + a/2 (KL(p || q) + KL(q || p)), where p and q are the distributions of the two passes. The loss here is L / 2,
so that it is as large as the loss of one pass.

SimCut (Gao et al. 2022, arXiv:2206.02368): in the second pass, the embeddings of some input tokens are also zero. L =
-log p(y) + a KL(p || q), with gradients for p and q, as in the authors' code (github.com/gpengzhi/Bi-SimCut).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from seq2seq.data.batching import IGNORE_INDEX, Batch
from seq2seq.errors import UserError
from seq2seq.model.loss import Logits, LossSum, smoothed_cross_entropy
from seq2seq.tokenizers.tokenizer import END_ID, START_ID


@dataclass(frozen=True)
class TokenCutoff:
    """Cutting of input tokens for the second pass of SimCut.

    source_vocab_size, target_vocab_size: numbers of ids. language_ids: ids of the language tokens, which are not cut,
    because they choose the target language.
    """

    source_vocab_size: int
    target_vocab_size: int
    language_ids: tuple[int, ...] = ()

    def cut(self, batch: Batch, probability: float) -> Batch:
        """Return the batch for the second pass: with this probability, a token of the source or of the decoder's input
        becomes the id after the last of its vocabulary, whose embedding is zero. `<s>`, `</s>` and the expected output
        stay. No operator waits for the device, so a CUDA graph can contain them."""
        return replace(batch, source=self._cut(batch.source, self.source_vocab_size, probability),
                       target_input=self._cut(batch.target_input, self.target_vocab_size, probability))

    def _cut(self, tokens: Tensor, vocab_size: int, probability: float) -> Tensor:
        cut = torch.rand(tokens.shape, device=tokens.device) < probability
        cut &= (tokens != END_ID) & (tokens != START_ID)
        for language in self.language_ids:
            cut &= tokens != language
        return torch.where(cut, vocab_size, tokens)


def two_passes(model: nn.Module, batch: Batch, second: Batch, together: bool) -> list[Logits]:
    """Return the outputs of a pass over each of two batches that differ only in their input tokens.

    Args:
        second: `batch` itself, or the result of `TokenCutoff.cut`.
        together: True: compute both as one pass over a joined batch. On a GPU, this is faster, because a kernel on a
            small batch takes about as long for twice the rows. On a CPU, it is slower.
    """
    run: Callable[[Batch], Any] = model if second is batch else partial(_with_embedding_of_cut_tokens, model)
    if not together:
        return [_plain(model(batch)), _plain(run(second))]

    output = _plain(run(replace(
        batch, source=torch.cat([batch.source, second.source]), source_positions=batch.source_positions.repeat(2),
        target_input=torch.cat([batch.target_input, second.target_input]),
        target_output=batch.target_output.repeat(2), target_positions=batch.target_positions.repeat(2), copies=2)))
    return [replace(output, hidden=hidden) for hidden in output.hidden.chunk(2)]


def _plain(output: Any) -> Logits:
    if type(output) is not Logits:                                              # a subclass may add to the loss
        raise UserError("training.consistency: this model has a loss of its own, and the two passes are compared by "
                        "the usual one. Remove the key.")
    return output


def _with_embedding_of_cut_tokens(model: nn.Module, batch: Batch) -> Any:
    """Return `model(batch)`, where the id after the last of a vocabulary has an embedding of zeros.

    Positional encodings are added to it as to any other. The output layer has no such id, even if it is tied.
    """
    embeddings = {name: F.pad(weight, (0, 0, 0, 1)) for name, weight in model.named_parameters(remove_duplicate=False)
                  if name.endswith("embedding")}
    assert embeddings, "the model has no parameter whose name ends with embedding"
    return functional_call(model, embeddings, (batch,), tie_weights=False)


def consistency_loss(passes: Sequence[Logits], target: Tensor, tokens: int, label_smoothing: float,
                     consistency: float, symmetric: bool) -> LossSum:
    """Return the training loss of two passes over the same batch.

    Args:
        passes: output of each pass, without terms of its own in the loss.
        consistency: a in the equations of the module docstring, the weight of the divergence of the passes.
        symmetric: True: the loss of R-Drop; False: the loss of SimCut.
        target, tokens, label_smoothing: as in `smoothed_cross_entropy`.
    Returns:
        The loss. `log_probabilities` is the mean over both passes in R-Drop, and that of the first pass in SimCut.
    """
    logits = replace(passes[0], hidden=torch.stack([output.hidden for output in passes], 1).flatten(0, 1))
    if symmetric:
        loss = smoothed_cross_entropy(logits, target.repeat_interleave(2), tokens, label_smoothing, consistency / 2)
        return LossSum(loss.total / 2, loss.log_probabilities.view(-1, 2).mean(1), tokens)
    targets = torch.stack([target, torch.full_like(target, IGNORE_INDEX)], 1).flatten()
    loss = smoothed_cross_entropy(logits, targets, tokens, label_smoothing, consistency, symmetric=False)
    return replace(loss, log_probabilities=loss.log_probabilities[::2])
