"""Text from a language model: beginnings in, texts out, drawn or searched for as a `decoding` section says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seq2seq.confidence import Word
from seq2seq.decoding import Decoding, Part, Request
from seq2seq.errors import UserError
from seq2seq.preparation import blocks
from seq2seq.recipe import DecodingSection
from seq2seq.translator import Translator, growing_blocks

# Beginnings that are read before the first text comes.
BLOCK_PROMPTS = 256
# Texts that are drawn together.
MOST_TOGETHER = 8192
# Pieces of a text at most where nobody says otherwise.
LONGEST = 100


@dataclass(frozen=True)
class Text:
    """A beginning and what follows it.

    log_probability: log p of all of it, `</s>` included, as the model gives it, whatever it was drawn from.
    tokens: its pieces and `</s>`. prompt_tokens: those of them that are the beginning's.
    words: with the confidence in each, where it was asked for.
    """

    text: str
    log_probability: float
    tokens: int
    prompt_tokens: int
    words: tuple[Word, ...] = ()


def generate(translator: Translator, prompts: Iterable[str], samples: int = 1, max_length: int | None = None,
             block_prompts: int = BLOCK_PROMPTS, **decoding: Any) -> Iterator[list[Text]]:
    """For each beginning, in order, texts that go on from it: with decoding's `sampling`, `samples` of them, else the
    `n_best` of a search.

    A sample depends on its beginning, the beginning's number, its own number and the seed; in fp32 on nothing else.

    Args:
        translator: a language model, loaded.
        prompts: white space around them is left out, and "" lets the model begin.
        max_length: pieces of a text at most, its beginning included; a text that reaches it is closed there. Not
            given: the recipe's, or 100.
        block_prompts: so many are read before the first text comes.
        decoding: keys of the recipe's `decoding` section that differ for this call, such as sampling=True, top_p=0.9.
    Raises:
        UserError: the model is no language model, or has no room for a beginning.
        ValueError: several samples are asked for, and no sampling.
    """
    if not translator.languages.monolingual:
        raise UserError("this is no language model: it translates. Use seq2seq translate, or name a language model.")
    recipe = translator.decoding
    longest = max_length or recipe.max_length or LONGEST
    options = DecodingSection.model_validate({
        **recipe.model_dump(), **decoding,
        # The source of every text is one token, `</s>`: it says nothing of how long texts may be, nor how many there
        # is memory for.
        "max_length": None, "max_length_ratio": 1.0, "max_length_offset": longest,
        "batch_tokens": max(1, recipe.batch_tokens // longest)})
    if samples > 1 and not options.sampling:
        raise ValueError("several samples need sampling=True; of a search, n_best says how many texts there are")
    asked = Decoding(options, translator.tokenizers.target, translator.languages.target)
    requests = (Request("", prompt, number=number) for number, prompt in enumerate(prompts))
    for block in growing_blocks(requests, max(1, min(block_prompts, MOST_TOGETHER // samples))):
        begun = [part for request in block for part in asked.parts(request, [""])]
        for part in begun:
            if len(part.prefix) + 2 > translator.model.max_positions:
                raise UserError(f"beginning {part.line + 1} has {len(part.prefix):,} pieces, and a text with its end "
                                f"has room for {translator.model.max_positions}. Give its last part alone.")
        # Each sample is a sentence of its own to the search: they have nothing to share.
        parts = [replace(part, place=sample) for part in begun for sample in range(samples)]
        texts = [ways for together in blocks(parts, MOST_TOGETHER) for ways in _texts(translator, together, asked)]
        for first in range(0, len(parts), samples):
            yield [text for found in texts[first : first + samples] for text in found]


def _texts(translator: Translator, parts: Sequence[Part], asked: Decoding) -> list[list[Text]]:
    found = translator.search_parts(parts, asked)
    return [[Text(way.text, way.hypothesis.log_probability, len(way.hypothesis.tokens) + 1, len(part.prefix), way.words)
             for way in ways] for part, ways in zip(parts, found, strict=True)]
