"""The `decoding` section of a recipe: the options of search and sampling."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from seq2seq.recipe.base_section import Pieces, Section, Tokens

Phrases = Annotated[tuple[str, ...], Field(strict=False)]
SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p")
SINGLE_SAMPLE: dict[str, Any] = {"sampling": True, "n_best": 1, "mbr": 0, "diverse_groups": 1, "require": ()}
"""Values that turn any `decoding` section into one that draws a single sample per sentence."""


class DecodingSection(Section):
    """Search options."""

    beam_size: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number of hypotheses kept for each sentence; 1 is greedy search. Ignored with `sampling`."""
    patience: Annotated[float, Field(ge=1, le=100)] = 1.0
    """The search of a sentence stops when `patience` * `beam_size` hypotheses have ended (Kasai et al. 2022). Raise it
    for a model with sharp distributions: there improbable hypotheses that end early can fill the beam before the best
    one has ended."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Exponent of the length that divides a hypothesis' log-probability. 0 prefers short translations."""
    length_penalty_form: Literal["power", "wu"] = "power"
    """Form of the divisor: length^penalty, or ((5 + length) / 6)^penalty of Wu et al. 2016."""
    coverage_penalty: NonNegativeFloat = 0.0
    """Strength of the penalty for source pieces that got little attention (Wu et al. 2016, equation 14), applied to the
    score of finished hypotheses. 0 turns it off."""
    min_length: Pieces = 0
    """Shortest translation, in pieces. If a line is translated in parts, it applies to each part."""
    max_length: Tokens | None = None
    """Upper limit of a translation's length in pieces, in addition to `max_length_ratio`. Not set: no other limit."""
    max_length_ratio: PositiveFloat = 2.0
    """Longest translation, in pieces: this times the source's pieces, plus `max_length_offset`."""
    max_length_offset: Pieces = 20
    """Pieces that a translation may have beyond `max_length_ratio` times its source."""
    no_repeat_ngram: Pieces = 0
    """No n-gram of this many pieces occurs twice in a translation. 0 turns it off."""
    ignore_case: bool = False
    """Match the phrases of `forbid` and `require` in any casing: `dog` also as `Dog` and `DOG`."""
    forbid: Phrases = ()
    """Words or phrases that no translation may contain. In languages with spaces they match whole words only: `art`
    does not forbid `party`."""
    require: Phrases = ()
    """Words or phrases that every translation must contain. In languages with spaces they match whole words only:
    `kicking` does not count as `kick`. Needs a beam about as wide as the number of their pieces."""
    diverse_groups: PositiveInt = 1
    """Number of groups of the beam that avoid each other's words (diverse beam search, Vijayakumar et al. 2016); must
    divide `beam_size`. 1 turns it off."""
    diverse_strength: NonNegativeFloat = 0.5
    """Penalty of a word, in nats, for each hypothesis of an earlier group that chose it in the same step."""
    sampling: bool = False
    """Sample translations instead of searching for the most probable ones; `n_best` is the number of samples."""
    temperature: PositiveFloat = 1.0
    """Softmax temperature of sampling: below 1 sharpens the distribution, above 1 flattens it."""
    top_k: Pieces = 0
    """Sample from the k most probable pieces only. 0: all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of pieces whose probabilities reach this sum (nucleus sampling)."""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Sample only from pieces that have at least this share of the most probable piece's probability."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of the samples; each line's samples depend on it and on the line number."""
    mbr: Annotated[int, Field(ge=0, le=1000)] = 0
    """Minimum-Bayes-risk decoding: number of candidates (samples, or the best of the beam), of which the one with the
    highest mean chrF against all of them is chosen. 0 turns it off."""
    n_best: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of translations per sentence, at most `beam_size`, or `mbr`; with `sampling`, the number of samples."""
    safety_net: bool = True
    """Look for faults in each translation: nothing translated, loops, an impossible length, copied source text, lost
    numbers and addresses. If there are any, search again with other options and keep the translation with fewer faults.
    Samples and `mbr` are not searched again."""
    word_confidence: bool = False
    """Also report the model's confidence in each word: the geometric mean of the probabilities of its pieces."""
    ensemble_mean: Literal["probability", "log_probability"] = "probability"
    """Mean that an ensemble takes of its models' predictions: of probabilities or of log-probabilities."""
    fusion_weight: NonNegativeFloat = 0.2
    """Weight of a fused language model's log-probability; the translation model's has weight 1."""
    batch_tokens: Tokens = 8192
    """Source tokens per batch in greedy search; a beam of N > 2 gets 2 / N of them. Changes speed and memory, not the
    translations."""

    @field_validator("max_length")
    @classmethod
    def _longest_is_no_shorter_than_shortest(cls, longest: int | None, info: ValidationInfo) -> int | None:
        shortest = info.data.get("min_length", 0)
        if longest is not None and longest < shortest:
            raise ValueError(f"no translation has at least {shortest} and at most {longest} pieces")
        return longest

    @field_validator("forbid", "require")
    @classmethod
    def _phrases_are_text(cls, phrases: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not all(phrase.strip() for phrase in phrases):
            raise ValueError("a phrase is text, found white space")
        if any("\ud800" <= character <= "\udfff" for phrase in phrases for character in phrase):
            raise ValueError("a phrase holds bytes that are not UTF-8")
        def comparable(phrase: str) -> str:
            return phrase.strip().casefold() if info.data.get("ignore_case") else phrase.strip()

        forbidden = set(map(comparable, info.data.get("forbid", ())))
        if both := [phrase for phrase in phrases if comparable(phrase) in forbidden]:
            raise ValueError(f"'{min(both)}' is forbidden, too")
        return phrases

    @field_validator("diverse_groups")
    @classmethod
    def _groups_divide_beam(cls, groups: int, info: ValidationInfo) -> int:
        beam_size = info.data.get("beam_size", groups)
        if beam_size % groups:
            fitting = [str(size) for size in (beam_size // groups * groups, -(-beam_size // groups) * groups) if size]
            raise ValueError(f"a beam of {beam_size} cannot be cut into {groups} groups of equal size; a beam of "
                             f"{' or '.join(fitting)} can")
        if groups > 1 and info.data.get("require"):
            raise ValueError("required phrases share out the whole beam; leave out one of both")
        return groups

    @field_validator("sampling")
    @classmethod
    def _samples_are_drawn_not_searched(cls, sampling: bool, info: ValidationInfo) -> bool:
        if sampling and info.data.get("require"):
            raise ValueError("required phrases need a search; leave out one of both")
        if sampling and info.data.get("diverse_groups", 1) > 1:
            raise ValueError("diverse groups are of a beam, and sampling has none; leave out one of both")
        return sampling

    @field_validator(*SAMPLING_KEYS)
    @classmethod
    def _only_samples_are_narrowed(cls, value: Any, info: ValidationInfo) -> Any:
        if value != cls.model_fields[str(info.field_name)].default and not info.data.get("sampling", True):
            raise ValueError("it changes samples only; add sampling: true, or leave it out")
        return value

    @field_validator("mbr")
    @classmethod
    def _candidates_are_found(cls, mbr: int, info: ValidationInfo) -> int:
        if mbr > info.data.get("beam_size", mbr) and not info.data.get("sampling", False):
            raise ValueError(f"a beam of {info.data['beam_size']} cannot give {mbr} candidates; raise beam_size, or "
                             "add sampling: true")
        return mbr

    @field_validator("n_best")
    @classmethod
    def _beam_holds_n_best(cls, n_best: int, info: ValidationInfo) -> int:
        mbr = info.data.get("mbr", 0)
        if mbr and n_best > mbr:
            raise ValueError(f"{mbr} candidates cannot give {n_best} translations; raise mbr")
        if not mbr and not info.data.get("sampling", False) and n_best > info.data.get("beam_size", n_best):
            raise ValueError(f"a beam of {info.data['beam_size']} cannot give {n_best} translations; raise beam_size")
        return n_best


class DecodingOptions(TypedDict, total=False):
    """Keys of `DecodingSection` that a Python call can override."""

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
    ensemble_mean: Literal["probability", "log_probability"]
    fusion_weight: float
    batch_tokens: int
