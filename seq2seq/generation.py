"""Text from a language model: beginnings in, texts out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from seq2seq.candidate_selection import Sampling
from seq2seq.constraints import beginning_with
from seq2seq.errors import UserError
from seq2seq.search import Hypothesis, power_normaliser, search
from seq2seq.tokenizer import END_ID
from seq2seq.translator import Translator, growing_blocks

# Prompts read ahead: texts are long, and whoever waits for the first should not wait for all.
BLOCK_PROMPTS = 256


@dataclass(frozen=True)
class Drawing:
    """How texts are drawn. seed, with the numbers of prompt and sample, decides each draw; `greedy` draws nothing and
    takes the most probable piece each time. temperature, top_k, top_p, min_p: see sampling.py."""

    seed: int = 1
    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True)
class Text:
    """A prompt and what follows it.

    log_probability: log p of all of it, `</s>` included, as the model gives it, whatever it was drawn from.
    tokens: its pieces and `</s>`. prompt_tokens: those of them that are the prompt's.
    """

    text: str
    log_probability: float
    tokens: int
    prompt_tokens: int


def generate(translator: Translator, prompts: Iterable[str], samples: int = 1, max_length: int = 100,
             drawing: Drawing | None = None, block_prompts: int = BLOCK_PROMPTS) -> Iterator[list[Text]]:
    """For each prompt, in order, `samples` texts that begin with it.

    A text depends on its prompt, the prompt's number, its own number and the seed; in fp32 not on other prompts.

    Args:
        translator: a language model, loaded.
        prompts: beginnings; white space around them is left out, and "" lets the model begin.
        max_length: pieces that may follow the prompt; a text that reaches it is closed there.
        drawing: if not given, plain draws from the model's distribution.
        block_prompts: so many are read before the first text comes.
    Raises:
        UserError: the model is no language model, or has no room for a prompt.
    """
    if not translator.languages.monolingual:
        raise UserError("this model translates; to draw texts, name a language model, or translate with "
                        "seq2seq translate.")
    numbers = count()
    for block in growing_blocks(prompts, block_prompts):
        texts = [prompt.strip() for prompt in block]
        encoded = translator.tokenizers.target.encode(texts)
        named = list(zip(encoded, numbers, strict=False))
        for ids, number in named:
            if len(ids) + 2 > translator.model.max_positions:
                raise UserError(f"prompt {number + 1} has {len(ids):,} pieces, and the model has room for "
                                f"{translator.model.max_positions} with what follows. Give its end alone.")
        # A text is a sentence of its own in the search: texts of one prompt share nothing.
        wanted = [(number, sample, ids) for ids, number in named for sample in range(samples)]
        found: list[Text] = []
        at_once = max(1, translator.decoding.batch_tokens // (max_length + max(map(len, encoded))))
        for begin in range(0, len(wanted), at_once):
            found += _generate(translator, wanted[begin : begin + at_once], max_length, drawing or Drawing())
        yield from (found[begin : begin + samples] for begin in range(0, len(found), samples))


def _generate(translator: Translator, wanted: Sequence[tuple[int, int, list[int]]], max_length: int,
              drawing: Drawing) -> list[Text]:
    """A text for each (number of the prompt, number of the sample, ids of the prompt)."""
    names = np.array([[number, sample] for number, sample, _ in wanted])
    prompts = [ids for *_, ids in wanted]
    most = translator.model.max_positions
    selection = None if drawing.greedy else Sampling(drawing.seed, names, drawing.temperature, drawing.top_k,
                                                     drawing.top_p, drawing.min_p)
    hypotheses = search(
        translator.model, torch.full((len(wanted),), END_ID, device=translator.device),
        torch.arange(len(wanted) + 1, dtype=torch.int32, device=translator.device), 1, beam_size=1,
        max_lengths=[min(most, len(ids) + max_length + 1) for ids in prompts], normaliser=power_normaliser(0),
        banned=translator.tokenizers.target.control_ids, constraints=[beginning_with(prompts)], selection=selection,
    )
    best: list[Hypothesis] = [first for first, *_ in hypotheses]
    texts = translator.tokenizers.target.decode([hypothesis.tokens for hypothesis in best])
    return [Text(text.replace("\n", " "), hypothesis.log_probability, len(hypothesis.tokens) + 1, len(ids))
            for text, hypothesis, ids in zip(texts, best, prompts, strict=True)]
