"""Text from a language model: beginnings in, texts out, drawn or searched for as a `decoding` section says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from seq2seq.data.preparation import blocks
from seq2seq.errors import OptionError, UserError, require_several, require_text
from seq2seq.recipe import DecodingOptions, decoding_with
from seq2seq.translation.search_setup import Decoding, Part, Request
from seq2seq.translation.translator import Translator, growing_blocks
from seq2seq.translation.word_confidence import Word

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


def generate(translator: Translator, prompts: Iterable[str], samples: int = 1, *, block_prompts: int = BLOCK_PROMPTS,
             **decoding: Unpack[DecodingOptions]) -> Iterator[list[Text]]:
    """For each beginning, in order, texts that go on from it: with decoding's `sampling`, `samples` of them, else the
    `n_best` of a search.

    A sample depends on its beginning, the beginning's number, its own number and the seed; in fp32 on nothing else.

    Args:
        translator: a language model, loaded.
        prompts: white space around them is left out, and "" lets the model begin.
        block_prompts: so many are read before the first text comes.
        decoding: keys of the recipe's `decoding` section that differ for this call, such as sampling=True, top_p=0.9.
            max_length counts the pieces of a text with its beginning; a text that reaches it is closed there. If
            neither the call nor the recipe sets it, it is 100.
    Raises:
        OptionError: an option does not exist, or does not allow its value; at once.
        UserError: the model is no language model; or it has no room for a beginning, when that is read.
        TypeError: `prompts` is one beginning, or a beginning is no str.
    """
    if not translator.languages.monolingual:
        raise UserError("this is no language model: it translates. Use seq2seq translate, or name a language model.")
    require_several(prompts, "prompts")
    for name, number in (("samples", samples), ("block_prompts", block_prompts)):
        if number < 1:
            raise OptionError(f"{name}: expected a number of at least 1; found {number}")
    given = decoding_with(translator.decoding, decoding)
    longest = given.max_length or LONGEST
    options = decoding_with(given, {
        # The source of every text is one token, `</s>`: it says nothing of how long texts may be, nor how many there
        # is memory for.
        "max_length": None, "max_length_ratio": 1.0, "max_length_offset": longest,
        "batch_tokens": max(1, given.batch_tokens // longest)})
    if samples > 1 and not options.sampling:
        raise OptionError("several samples need sampling=True; of a search, n_best says how many texts there are")
    asked = Decoding(options, translator.tokenizers.target, translator.languages.target)
    return _generated(translator, prompts, samples, block_prompts, asked)


def _generated(translator: Translator, prompts: Iterable[str], samples: int, block_prompts: int, asked: Decoding,
               ) -> Iterator[list[Text]]:
    def request(number: int, prompt: str) -> Request:
        require_text(prompt, f"prompts[{number}]")
        return Request("", prompt, number=number)

    requests = (request(number, prompt) for number, prompt in enumerate(prompts))
    for block in growing_blocks(requests, max(1, min(block_prompts, MOST_TOGETHER // samples))):
        begun = [part for request in block for part in asked.parts(request, [""])]
        for part in begun:
            if len(part.prefix) + 2 > translator.max_positions:
                raise UserError(f"beginning {part.line + 1} has {len(part.prefix):,} pieces, and a text with its end "
                                f"has room for {translator.max_positions}. Give its last part alone.")
        # Each sample is a sentence of its own to the search: they have nothing to share.
        parts = [replace(part, place=sample) for part in begun for sample in range(samples)]
        texts = [ways for together in blocks(parts, MOST_TOGETHER) for ways in _texts(translator, together, asked)]
        for first in range(0, len(parts), samples):
            yield [text for found in texts[first : first + samples] for text in found]


def _texts(translator: Translator, parts: Sequence[Part], asked: Decoding) -> list[list[Text]]:
    found = translator.search_parts(parts, asked)
    return [[Text(way.text, way.hypothesis.log_probability, len(way.hypothesis.tokens) + 1, len(part.prefix), way.words)
             for way in ways] for part, ways in zip(parts, found, strict=True)]
