"""The `decoding` section of a recipe: options of search and sampling."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from seq2seq.recipe.base_section import Pieces, Section, Tokens
from seq2seq.recipe.combinations import IN_DECODING, refuse_combinations

Phrases = Annotated[tuple[str, ...], Field(strict=False)]
SINGLE_SAMPLE: dict[str, Any] = {"sampling": True, "n_best": 1, "mbr": 0, "diverse_groups": 1, "require": ()}
"""Overrides that make any `decoding` section draw a single sample per sentence."""
DEFAULT_BATCH_TOKENS = 8192


class DecodingSection(Section):
    """Options of search and sampling."""

    beam_size: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number of hypotheses kept for each sentence; 1 is greedy search. Ignored with `sampling`."""
    patience: Annotated[float, Field(ge=1, le=100)] = 1.0
    """The search for a sentence stops when `patience` * `beam_size` hypotheses are finished (Kasai et al. 2022). A
    model with sharp distributions needs a value above 1, because `beam_size` improbable hypotheses can finish before
    the best one."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Exponent of the length penalty, a divisor of the log-probability of a hypothesis. 0 turns the penalty off; search
    then prefers short translations."""
    length_penalty_form: Literal["power", "wu"] = "power"
    """Form of the length penalty: `power` is length^length_penalty, `wu` is ((5 + length) / 6)^length_penalty (Wu et
    al. 2016, equation 14)."""
    coverage_penalty: NonNegativeFloat = 0.0
    """Strength of the penalty for source pieces that got little attention (Wu et al. 2016, equation 14). The penalty
    changes the scores of finished hypotheses only. 0 turns it off."""
    min_length: Pieces = 0
    """Minimum length of a translation in pieces. If a line is translated in parts, the minimum applies to each part."""
    max_length: Tokens | None = None
    """Maximum length of a translation in pieces. The limit by `max_length_ratio` also applies. Not set: only the limit
    by `max_length_ratio` applies."""
    max_length_ratio: PositiveFloat = 2.0
    """Maximum length of a translation in pieces: `max_length_ratio` * (length of the source) + `max_length_offset`;
    both lengths include the end of the sentence."""
    max_length_offset: Pieces = 20
    """Constant part of the maximum length of a translation, in pieces; see `max_length_ratio`."""
    no_repeat_ngram: Pieces = 0
    """Length in pieces of the n-grams that may not occur twice in a translation. 0 turns this rule off."""
    ignore_case: bool = False
    """Match the phrases of `forbid` and `require` in any case: `dog` also matches `Dog` and `DOG`."""
    forbid: Phrases = ()
    """Words or phrases that no translation may contain; whole words in languages with spaces: `art` does not forbid
    `party`."""
    require: Phrases = ()
    """Words or phrases that every translation must contain; whole words in languages with spaces: `kicking` does not
    satisfy `kick`. `beam_size` should be about the number of pieces in all phrases together."""
    diverse_groups: PositiveInt = 1
    """Number of groups into which the beam is divided; each group avoids the pieces that earlier groups chose (diverse
    beam search, Vijayakumar et al. 2016). The number must divide `beam_size`. 1 turns diverse beam search off."""
    diverse_strength: NonNegativeFloat = 0.5
    """Penalty of diverse beam search, in nats. A piece gets this penalty once for each hypothesis of an earlier group
    that chose the same piece in the same step."""
    sampling: bool = False
    """Sample translations instead of searching for the most probable ones: `mbr` samples, or `n_best` if `mbr` is 0."""
    temperature: PositiveFloat = 1.0
    """Softmax temperature for sampling: values below 1 sharpen the distribution, values above 1 flatten it."""
    top_k: Pieces = 0
    """Number of most probable pieces from which samples are drawn. 0: all pieces."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of pieces whose probabilities add up to at least this value (nucleus sampling)."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Sample only from pieces that are at least `min_p` times as probable as the most probable piece."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of the samples; those of a line depend on the seed and on the line number."""
    mbr: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of candidates for minimum-Bayes-risk decoding, which chooses the one with the highest mean chrF against
    all of them; they are samples with `sampling`, else hypotheses of the beam. 0 turns it off."""
    n_best: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of translations per sentence. Their texts differ; if the search finds fewer, there are fewer. Samples
    (`sampling` without `mbr`) may be equal. If `mbr` is not 0, the maximum is `mbr`; otherwise, the maximum in beam
    search is `beam_size`."""
    safety_net: bool = True
    """Check each translation for faults (empty output, loops, impossible length, copied source text, missing or changed
    numbers, missing addresses), and retry faulty ones: with other options, then sentence by sentence. The translation
    with fewer faults is kept. Samples and translations chosen by `mbr` are not retried."""
    word_confidence: bool = False
    """Also return the model's confidence in each word: the geometric mean of the probabilities of its pieces."""
    shortlist: Pieces = 0
    """Number of target pieces for each source piece that a search in int8 on a CPU considers, which makes it faster; 0:
    all. `seq2seq shortlist` makes the list of these pieces, of at most 400 for each source piece. Searches with
    constraints, sampling, diverse beams, an ensemble or fusion, and other precisions, always consider all pieces."""
    ensemble_mean: Literal["probability", "log_probability"] = "probability"
    """Values that an ensemble averages over its models: probabilities or log-probabilities."""
    fusion_weight: NonNegativeFloat = 0.2
    """Weight of the log-probability of a language model in shallow fusion. The translation model has weight 1."""
    batch_tokens: Literal["auto"] | Tokens = "auto"
    """Maximum number of source tokens per batch for a beam of 1 or 2; a larger beam divides it by `beam_size` / 2.
    `auto`: 8,192; in a beam search that runs on a GPU as a whole, 65,536, or fewer if its memory is too small. The
    value affects speed and memory; translations change only by rounding."""

    @property
    def batch_tokens_or_default(self) -> int:
        """`batch_tokens` for all that is not a beam search on a GPU: the default number instead of `auto`."""
        return DEFAULT_BATCH_TOKENS if self.batch_tokens == "auto" else self.batch_tokens

    @field_validator("max_length")
    @classmethod
    def _require_min_below_max_length(cls, max_length: int | None, info: ValidationInfo) -> int | None:
        min_length = info.data.get("min_length", 0)
        if max_length is not None and max_length < min_length:
            raise ValueError(f"must not be smaller than min_length ({min_length}), found {max_length}")
        return max_length

    @field_validator("forbid", "require")
    @classmethod
    def _validate_phrases(cls, phrases: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not all(phrase.strip() for phrase in phrases):
            raise ValueError("a phrase must not be blank")
        if any("\ud800" <= character <= "\udfff" for phrase in phrases for character in phrase):
            raise ValueError("a phrase contains bytes that are not UTF-8")
        def comparable(phrase: str) -> str:
            return phrase.strip().casefold() if info.data.get("ignore_case") else phrase.strip()

        forbidden = set(map(comparable, info.data.get("forbid", ())))
        if both := [phrase for phrase in phrases if comparable(phrase) in forbidden]:
            raise ValueError(f"'{min(both)}' is both required and forbidden")
        return phrases

    @field_validator("diverse_groups")
    @classmethod
    def _require_groups_to_divide_beam(cls, groups: int, info: ValidationInfo) -> int:
        beam_size = info.data.get("beam_size", groups)
        if beam_size % groups:
            sizes = [str(size) for size in (beam_size // groups * groups, -(-beam_size // groups) * groups) if size]
            raise ValueError(f"a beam of {beam_size} cannot be divided into {groups} groups of equal size; a beam of "
                             f"{' or '.join(sizes)} can")
        return groups

    @field_validator("mbr")
    @classmethod
    def _require_enough_candidates(cls, mbr: int, info: ValidationInfo) -> int:
        if mbr > info.data.get("beam_size", mbr) and not info.data.get("sampling", False):
            raise ValueError(f"a beam of {info.data['beam_size']} cannot produce {mbr} candidates; raise beam_size, or "
                             "turn sampling on")
        return mbr

    @field_validator("n_best")
    @classmethod
    def _require_enough_hypotheses(cls, n_best: int, info: ValidationInfo) -> int:
        mbr = info.data.get("mbr", 0)
        if mbr and n_best > mbr:
            raise ValueError(f"{mbr} candidates cannot produce {n_best} translations; raise mbr")
        if not mbr and not info.data.get("sampling", False) and n_best > info.data.get("beam_size", n_best):
            raise ValueError(f"a beam of {info.data['beam_size']} cannot produce {n_best} translations; raise "
                             "beam_size")
        return n_best

    @model_validator(mode="after")
    def _refuse_combinations(self) -> "DecodingSection":
        refuse_combinations(IN_DECODING, {"decoding": self})
        return self


class DecodingOptions(TypedDict, total=False):
    """Keys of `DecodingSection` that a call of the Python interface can override."""

    beam_size: int
    patience: float
    length_penalty: float
    length_penalty_form: Literal["power", "wu"]
    coverage_penalty: float
    min_length: int
    max_length: int | None
    max_length_ratio: float
    max_length_offset: int
    no_repeat_ngram: int
    ignore_case: bool
    forbid: Sequence[str]
    require: Sequence[str]
    diverse_groups: int
    diverse_strength: float
    sampling: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    mbr: int
    n_best: int
    safety_net: bool
    word_confidence: bool
    shortlist: int
    ensemble_mean: Literal["probability", "log_probability"]
    fusion_weight: float
    batch_tokens: Literal["auto"] | int
