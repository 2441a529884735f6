"""Noise in the input tokens of training: word dropout, SwitchOut and token cutoff.

A model that cannot rely on every single token overfits less to a small corpus.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seq2seq.data.batching import Batch
from seq2seq.recipe import Recipe
from seq2seq.tokenizers.tokenizer import END_ID, START_ID, UNKNOWN_ID, Tokenizers


@dataclass(frozen=True)
class TokenNoise:
    """Random changes of the tokens of the source and of the decoder's input. The expected output does not change.

    source_vocab_size, target_vocab_size: numbers of ids. word_dropout: probability that a token becomes `<unk>` (Bowman
        et al. 2016, arXiv:1511.06349, in the decoder; Sennrich et al. 2016, arXiv:1606.02891, on both sides).
    switch_out: temperature of SwitchOut (Wang et al. 2018, arXiv:1808.07512). For each sentence, a number n is drawn
        with p(n) in proportion to exp(-n / temperature). On average, n of its tokens become random tokens. 0: off.
    language_ids: ids of the language tokens, which are neither changed nor drawn: they choose the target language.
    """

    source_vocab_size: int
    target_vocab_size: int
    word_dropout: float = 0.0
    switch_out: float = 0.0
    language_ids: tuple[int, ...] = ()

    @staticmethod
    def for_training(recipe: Recipe, tokenizers: Tokenizers) -> TokenNoise:
        """Return the noise of a training."""
        return TokenNoise(tokenizers.source.vocab_size, tokenizers.target.vocab_size, recipe.training.word_dropout,
                          recipe.training.switch_out,
                          tuple(tokenizers.source.languages.values()))

    def apply(self, batch: Batch) -> Batch:
        """Return the batch with random changes, drawn from the default random number generator of torch."""
        if not self.word_dropout and not self.switch_out:
            return batch
        return replace(batch, source=self._changed(batch.source, batch.source_offsets, self.source_vocab_size),
                       target_input=self._changed(batch.target_input, batch.target_offsets, self.target_vocab_size))

    def cut(self, batch: Batch, probability: float) -> Batch:
        """Return the batch for the second pass of SimCut (see `consistency.py`): with this probability, a token becomes
        the id after the last of its vocabulary. No operator waits for the device, so a CUDA graph can contain them."""
        def cut(tokens: Tensor, vocab_size: int) -> Tensor:
            chosen = torch.rand(tokens.shape, device=tokens.device) < probability
            return torch.where(chosen & self._are_words(tokens), vocab_size, tokens)

        return replace(batch, source=cut(batch.source, self.source_vocab_size),
                       target_input=cut(batch.target_input, self.target_vocab_size))

    def _are_words(self, tokens: Tensor) -> Tensor:
        """Return True for each token that may change, (tokens,)."""
        words = (tokens != END_ID) & (tokens != START_ID)
        for language in self.language_ids:
            words &= tokens != language
        return words

    def _changed(self, tokens: Tensor, offsets: Tensor, vocab_size: int) -> Tensor:
        words = self._are_words(tokens)
        if self.switch_out:
            replaced = torch.rand(tokens.shape, device=tokens.device) < self._shares(len(tokens), offsets)
            others = torch.randint(END_ID + 1, vocab_size, tokens.shape, device=tokens.device)
            tokens = others.where(replaced & words & self._are_words(others), tokens)
        if self.word_dropout:
            dropped = torch.rand(tokens.shape, device=tokens.device) < self.word_dropout
            tokens = torch.where(dropped & words, UNKNOWN_ID, tokens)
        return tokens

    def _shares(self, tokens: int, offsets: Tensor) -> Tensor:
        """Return the replacement probability of each token, (tokens,): n (see `switch_out`) / words of the sentence."""
        lengths = torch.cat([offsets, offsets.new_full((1,), tokens)]).diff()   # and that of the tail, all of `</s>`
        words = (lengths - 1).clamp(min=1).double()                             # without `</s>` or `<s>`
        # Inverse of the distribution function of p(n) = r^n (1 - r) / (1 - r^(words + 1)), n = 0 … words.
        ratio = math.exp(-1 / self.switch_out)
        drawn = torch.rand(words.shape, dtype=torch.float64, device=words.device)
        number = ((1 - drawn * (1 - ratio ** (words + 1))).log() * -self.switch_out).floor().clamp(max=words)
        return (number / words).float().repeat_interleave(lengths, output_size=tokens)
