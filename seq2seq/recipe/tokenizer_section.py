"""The `tokenizer` section of a recipe."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from seq2seq.recipe.base_section import Section

VOCABULARY_SIZES = (260, 10_000_000)
"""Minimum and maximum vocabulary size, in pieces. The minimum is 256 bytes, 3 special symbols and one other piece."""


def _number_or_auto(value: Any) -> Any:
    """Return the value if it is a size or `auto`.

    Any other value raises a single ValueError. Without this function, pydantic would report one error per allowed type.
    """
    minimum, maximum = VOCABULARY_SIZES
    if value == "auto" or isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
        return value
    text = "nothing" if value is None else value if isinstance(value, int | float) else f"'{value}'"
    raise ValueError(f"expected auto, or a whole number from {minimum} to {maximum:,}; found {text}")


VocabularySize = Annotated[
    Annotated[int, Field(ge=VOCABULARY_SIZES[0], le=VOCABULARY_SIZES[1])] | Literal["auto"],
    BeforeValidator(_number_or_auto)]


class TokenizerSection(Section):
    """The vocabulary: sentencepiece subwords or whole words, trained on the training corpora."""

    taken_from: str | None = None
    """Model (a run or a bundle, not a file of sentencepiece) whose tokenizer is used, and no new one trained. Models
    with the same tokenizer can be combined in decoding (ensemble, fusion). A language model uses only the target one.
    If this key is set, `joint` must match the tokenizer; keys for the training of a tokenizer are ignored."""
    type: Literal["unigram", "bpe", "words"] = "unigram"
    """`unigram`: unigram language model (Kudo 2018). `bpe`: byte-pair encoding (Sennrich et al. 2016). `words`: whole
    words, separated by white space; words that are not in the vocabulary become the unknown token. Not set: `words` for
    models whose targets are positions, which require it; else `unigram`."""
    vocab_size: VocabularySize = "auto"
    """Number of pieces, including 256 bytes and 3 special symbols. For `words`, maximum number of words; the most
    frequent words are kept. `auto` derives the size from the training text: 259 bytes and symbols, plus the number of
    different characters, plus min(32,000, 64 * (number of characters)^(1/3)). The sum is rounded up to two significant
    digits. The size is smaller if the text has too few subwords. For `words`, `auto` is 30,000."""
    joint: bool = True
    """Train one vocabulary for both languages. `false` trains one vocabulary per language, each with `vocab_size`
    pieces. Targets that are positions always have a separate vocabulary."""
    normalization: Literal["canonical", "identity", "nmt_nfkc"] = "canonical"
    """Normalisation of text before tokenisation, in training and translation. `canonical` makes texts equal that look
    the same. It writes canonically equivalent characters in one way (Unicode's NFC). It turns spaces of other widths,
    no-break spaces, tabs and line separators into ordinary spaces, and several spaces into one. It removes invisible
    characters: soft hyphens, zero-width spaces, word joiners, byte order marks and controls of the writing direction.
    Translations do not contain these characters either. `nmt_nfkc` then also replaces compatibility characters: a
    full-width comma becomes an ordinary comma. `identity` changes nothing. White space at the ends of a line is never
    read."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 1.0
    """Share of the text's characters that are covered by pieces. Rarer characters are encoded as bytes."""
    sample_lines: Annotated[int, Field(gt=0, le=1_000_000_000)] = 1_000_000
    """The tokenizer is trained on a sample of `sample_lines` / 2 training pairs, or on all pairs if there are fewer.
    If corpora have different weights, or with a `data.temperature`, each corpus has the share of the sample that it has
    of an epoch, but at most all of its pairs."""
    subword_sampling: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Subword regularisation, which segments the training text differently in each epoch. The value is alpha of unigram
    sampling, or the dropout probability of BPE merges. 0 turns it off."""

    @property
    def is_canonical(self) -> bool:
        """True if text is made canonical before tokenisation."""
        return self.normalization != "identity"
