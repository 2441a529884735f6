"""Text generation with a language model: continuations of prompts, by sampling or by beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from seq2seq.data.parallel_text import blocks
from seq2seq.errors import OptionError, UserError
from seq2seq.recipe import DecodingOptions, decoding_with
from seq2seq.tokenizers.source import Source
from seq2seq.translation.search_setup import Part, SearchSetup
from seq2seq.translation.sources import growing_blocks
from seq2seq.translation.translator import Translator
from seq2seq.translation.word_confidence import Word

BLOCK_PROMPTS = 256
"""Default of `block_prompts` in `generate`."""
MAX_BLOCK_TEXTS = 8192
"""Maximum number of samples in a search, to limit the memory. Also the maximum in a block with several prompts."""
DEFAULT_MAX_LENGTH = 100
"""Maximum number of pieces of a text, prompt included, if neither the call nor the recipe sets `max_length`."""


@dataclass(frozen=True)
class Text:
    """Prompt with its continuation.

    text: the whole text. log_probability: the model's log p of the whole text, `</s>` included, computed without
    temperature, top_k, top_p and min_p. tokens: number of pieces of the text, plus 1 for `</s>`. prompt_tokens: number
    of pieces of the prompt. words: words of the text with their confidence, if `decoding.word_confidence` is set.
    """

    text: str
    log_probability: float
    tokens: int
    prompt_tokens: int
    words: tuple[Word, ...] = ()


def generate(translator: Translator, prompts: Iterable[str], samples: int = 1, *, block_prompts: int = BLOCK_PROMPTS,
             **decoding: Unpack[DecodingOptions]) -> Iterator[list[Text]]:
    """Yield a list of texts for each prompt, in the order of the prompts. Each text is the prompt with a continuation.

    Without `sampling`, the list contains the `n_best` different texts that beam search finds, or fewer. With
    `sampling`, it contains `samples` * `n_best` samples, some of which can be equal. In fp32, a sample of a model
    depends only on the seed, the prompt, the index of the prompt and the index of the sample. In bf16, it also depends
    on the other prompts of the batch, due to rounding.

    Args:
        translator: loaded language model.
        prompts: beginnings of the texts. White space around a prompt is removed. If a prompt is "", the model writes
            the whole text.
        block_prompts: maximum number of prompts that are read before the first text is returned.
        decoding: values that override the recipe's `decoding` section, such as sampling=True, top_p=0.9. `max_length`
            limits the whole text, prompt included. If neither the call nor the recipe sets `max_length`, the limit is
            100 pieces.
    """
    if translator.task.has_source:
        raise UserError("this is a translation model, which cannot continue prompts. Use seq2seq translate, or name a "
                        "language model.")
    for name, number in (("samples", samples), ("block_prompts", block_prompts)):
        if number < 1:
            raise OptionError(f"{name}: expected a number of at least 1; found {number}")
    given = decoding_with(translator.decoding, decoding)
    max_length = given.max_length or DEFAULT_MAX_LENGTH
    options = decoding_with(given, {
        # The source of every text is a single token, `</s>`. The maximum length and the batch size are therefore set
        # from `max_length`, not from the length of the source.
        "max_length": None, "max_length_ratio": 1.0, "max_length_offset": max_length,
        "batch_tokens": max(1, given.batch_tokens_or_default // max_length)})
    if samples > 1 and not options.sampling:
        raise OptionError(f"samples={samples} needs sampling=True. To get several texts without sampling, set n_best.")
    if options.coverage_penalty:
        raise OptionError("coverage_penalty: a language model has no source that could be covered. Leave it out.")
    setup = SearchSetup(options, translator.tokenizers.target, translator.languages.target)
    return _generate(translator, prompts, samples, block_prompts, setup)


def _generate(translator: Translator, prompts: Iterable[str], samples: int, block_prompts: int, setup: SearchSetup,
              ) -> Iterator[list[Text]]:
    sources = (Source("", prefix=prompt, number=number) for number, prompt in enumerate(prompts))
    for block in growing_blocks(sources, max(1, min(block_prompts, MAX_BLOCK_TEXTS // samples))):
        prompt_parts = [part for source in block for part in setup.parts(source, [""])]
        for part in prompt_parts:
            if len(part.prefix) + 2 > translator.max_positions:
                raise UserError(f"prompt {part.line + 1} has {len(part.prefix):,} pieces, but the model's maximum for "
                                f"a whole text is {translator.max_positions}, which includes at least one new piece "
                                "and the end of the sentence. Shorten the prompt to its last words.")
        # The search treats each sample as a separate sentence.
        parts = [replace(part, index=sample) for part in prompt_parts for sample in range(samples)]
        texts = [n_best for some_parts in blocks(parts, MAX_BLOCK_TEXTS)
                 for n_best in _texts(translator, some_parts, setup)]
        for first in range(0, len(parts), samples):
            yield [text for n_best in texts[first : first + samples] for text in n_best]


def _texts(translator: Translator, parts: Sequence[Part], setup: SearchSetup) -> list[list[Text]]:
    return [[Text(translation.text, translation.hypothesis.log_probability, len(translation.hypothesis.tokens) + 1,
                  len(part.prefix), translation.words) for translation in n_best]
            for part, n_best in zip(parts, translator.search_parts(parts, setup), strict=True)]
