"""Text generation with a language model: continuations of prompts, sampled or searched for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from seq2seq.data.preparation import blocks
from seq2seq.errors import OptionError, UserError, require_iterable, require_text
from seq2seq.recipe import DecodingOptions, decoding_with
from seq2seq.translation.search_setup import Decoding, Part, Request
from seq2seq.translation.translator import Translator, growing_blocks
from seq2seq.translation.word_confidence import Word

# Number of prompts that are read before the first text is returned.
BLOCK_PROMPTS = 256
# Largest number of texts in a batch.
MOST_TOGETHER = 8192
# Default limit of a text's length, in pieces.
LONGEST = 100


@dataclass(frozen=True)
class Text:
    """Prompt with its continuation.

    log_probability: the model's log p of the whole text, `</s>` included, before temperature and truncation.
    tokens: number of pieces, and `</s>`. prompt_tokens: number of pieces of the prompt.
    words: its words with confidence, if requested.
    """

    text: str
    log_probability: float
    tokens: int
    prompt_tokens: int
    words: tuple[Word, ...] = ()


def generate(translator: Translator, prompts: Iterable[str], samples: int = 1, *, block_prompts: int = BLOCK_PROMPTS,
             **decoding: Unpack[DecodingOptions]) -> Iterator[list[Text]]:
    """Yield for each prompt, in order, its continuations: `samples` of them with `sampling`, else the `n_best`.

    A sample depends on its prompt, the index of the prompt, the index of the sample and the seed; in fp32 on nothing
    else.

    Args:
        translator: a language model, loaded.
        prompts: white space around them is removed; "" starts a new text.
        block_prompts: number of prompts that are read before the first text is returned.
        decoding: values that override the recipe's `decoding` section, such as sampling=True, top_p=0.9. max_length
            includes the pieces of the prompt; a text that reaches it is closed there. If neither the call nor the
            recipe sets it, it is 100.
    Raises:
        OptionError: an option is unknown, or its value is invalid; raised at once.
        UserError: the model is no language model; or a prompt is too long for it (raised when it is read).
        TypeError: `prompts` is a single prompt, or a prompt is no str.
    """
    if not translator.languages.monolingual:
        raise UserError("this is no language model: it translates. Use seq2seq translate, or name a language model.")
    require_iterable(prompts, "prompts")
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
        # Each sample is a sentence of its own in the search.
        parts = [replace(part, place=sample) for part in begun for sample in range(samples)]
        texts = [ways for together in blocks(parts, MOST_TOGETHER) for ways in _texts(translator, together, asked)]
        for first in range(0, len(parts), samples):
            yield [text for found in texts[first : first + samples] for text in found]


def _texts(translator: Translator, parts: Sequence[Part], asked: Decoding) -> list[list[Text]]:
    found = translator.search_parts(parts, asked)
    return [[Text(way.text, way.hypothesis.log_probability, len(way.hypothesis.tokens) + 1, len(part.prefix), way.words)
             for way in ways] for part, ways in zip(parts, found, strict=True)]
