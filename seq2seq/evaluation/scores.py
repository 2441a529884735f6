"""Evaluation of models: BLEU, chrF, TER, exact match and perplexity, each with its signature.

Translations are scored by sacreBLEU on raw text, because BLEU scores are only comparable with the same tokenisation and
settings (Post 2018, arXiv:1804.08771). A perplexity likewise needs its unit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacrebleu.metrics import BLEU, CHRF, TER

from seq2seq import console
from seq2seq.data.corpus import read_pairs, read_texts
from seq2seq.data.line_splitting import main_language
from seq2seq.data.pair_quality import is_tokenized
from seq2seq.errors import CorpusError, OptionError, UserError, require_texts

if TYPE_CHECKING:
    from seq2seq.recipe import Recipe
    from seq2seq.translation.line_translator import Translation
    from seq2seq.translation.translator import Translator

Translate = Callable[..., "list[list[Translation]]"]
"""Function with the arguments and results of `Translator.translate`."""
METRICS = ("bleu", "chrf", "ter")
"""Default metrics of translations; `exact` is the fourth."""
TOKENIZED = 0.2
"""Share of lines with detached punctuation above which text counts as tokenised."""
# Perplexities and their units.
UNITS = {"perplexity": "piece", "word_perplexity": "word", "character_perplexity": "character"}

TITLES = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER",
          **{metric: f"perplexity per {unit}" for metric, unit in UNITS.items()}}


@dataclass(frozen=True)
class Score:
    """Value of a metric: in percent as sacreBLEU computes it, the share of exact matches in percent, or a
    perplexity."""

    value: float
    signature: str
    """sacreBLEU's signature, or one in its format: references, case, tokeniser, smoothing, version. For a perplexity:
    its unit."""
    details: dict[str, Any] = field(default_factory=dict)
    """For BLEU: brevity_penalty, precisions (of n-grams of 1 to 4 words), and both lengths in words. For a perplexity:
    the sum of -log p in nats, the number of units, and the number of lines."""
    precision: str | None = None
    """Precision of the model (fp32, bf16, int8), which is not part of signatures; None for text from elsewhere."""


def bleu_tokenizer(language: str) -> str:
    """Return the name of sacreBLEU's tokeniser for this language; 13a for languages with spaces between words."""
    return {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}.get(main_language(language), "13a")


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    language: str,
    metrics: Sequence[str] = METRICS,
    names: Sequence[str] | None = None,
    precision: str | None = None,
) -> dict[str, Score]:
    """Return corpus-level scores of a test set.

    Args:
        hypotheses: translations, one per line, detokenized.
        references: one or more streams, each with a line for every hypothesis.
        language: code of the target language; selects the tokeniser of BLEU.
        metrics: some of bleu, chrf, ter, and exact: the share of lines that equal their line in a reference.
        names: names of the hypotheses and of each reference stream in errors, such as their paths.
        precision: of the model that produced the hypotheses, if known.
    Raises:
        CorpusError: there are no lines, or their numbers differ.
        UserError: the language needs an optional package.
        TypeError: a line is no str.
    """
    if isinstance(references, str) or any(isinstance(stream, str) for stream in references):
        raise TypeError("references are streams of lines: [lines], or [lines, lines] where there are two")
    require_texts(hypotheses, "hypotheses")
    for place, stream in enumerate(references):
        require_texts(stream, f"references[{place}]")
    if names is None:
        numbers = [f" {number}" for number in range(1, len(references) + 1)] if len(references) > 1 else [""]
        names = ["the hypotheses", *(f"the reference{number}" for number in numbers)]
    require_parallel(hypotheses, references, names)
    return {metric: _score(metric, hypotheses, references, language, precision) for metric in metrics}


def score_files(
    hypothesis_path: Path, reference_paths: Sequence[Path], language: str, metrics: Sequence[str] = METRICS
) -> dict[str, Score]:
    """Return `corpus_scores` of text files (or .gz) from any system.

    Raises:
        CorpusError: as corpus_scores; or a file cannot be read.
    """
    paths = [Path(hypothesis_path), *map(Path, reference_paths)]
    hypotheses, *references = [read_texts(path) for path in paths]
    if sum(map(is_tokenized, hypotheses)) > TOKENIZED * len(hypotheses):
        console.warn(f"{hypothesis_path} looks tokenised (full stops and commas stand apart), and sacreBLEU tokenises "
                     "again. Detokenise it; or, for the figure of a paper on tokenised text, use sacrebleu --force "
                     "--tokenize none.")
    return corpus_scores(hypotheses, references, language, metrics, names=[str(path) for path in paths])


def score_pairs(
    translator: "Translator", pairs: Sequence[tuple[str, str]], metrics: Sequence[str] = METRICS,
    translate: Translate | None = None,
) -> dict[str, Score]:
    """Return the scores of a model on sentence pairs: of its translations, and perplexities of the targets.

    Args:
        metrics: metrics of `corpus_scores` and perplexities. If there are only perplexities, nothing is translated.
        translate: function that translates the sources; None: `translator.translate`. Distributed training passes one
            that divides the lines among the ranks.
    Raises:
        CorpusError, UserError: as corpus_scores.
    """
    of_likelihood = [metric for metric in metrics if metric in UNITS]
    of_text = [metric for metric in metrics if metric not in UNITS]
    scores = perplexities(translator, pairs, of_likelihood) if of_likelihood else {}
    if of_text:
        scores |= _translated(translator, pairs, of_text, translate or translator.translate)
    return scores


def _translated(
    translator: "Translator", pairs: Sequence[tuple[str, str]], metrics: Sequence[str], translate: Translate
) -> dict[str, Score]:
    with console.progress("translating", len(pairs)) as advance:
        found = translate([source for source, _ in pairs], progress=advance)
    hypotheses = [best.text for best, *_ in found]
    references = [target for _, target in pairs]
    return corpus_scores(hypotheses, [references], translator.languages.target, metrics,
                         precision=translator.precision)


def perplexities(
    translator: "Translator", pairs: Sequence[tuple[str, str]], metrics: Sequence[str] = tuple(UNITS)
) -> dict[str, Score]:
    """Return perplexities of the pairs' targets, exp of the mean -log p, per piece, word and character.

    `</s>` counts as a unit, as in loss and validation. Perplexity per piece is comparable between models with the same
    tokenizer only; per word and per character, between all models on the same text. Words are separated by white space.

    Raises:
        CorpusError: there is no line that the model can take.
    """
    from seq2seq.model.loss import perplexity  # not earlier: it imports torch, which scores of finished text do without

    tokenizer = translator.tokenizers.target
    kept = translator.scorable_pairs(pairs)
    if not kept:
        raise CorpusError("There is nothing to evaluate: no line that the model can take.")
    if len(kept) < len(pairs):
        console.warn(f"{len(pairs) - len(kept):,} of {len(pairs):,} lines have more than "
                     f"{translator.max_positions - 1} pieces; they count nowhere")
    with console.progress("scoring", len(kept)) as advance:
        found = translator.score(kept, advance)
    total = -sum(score.log_probability for score in found)
    counts = {"perplexity": sum(score.tokens for score in found),
              "word_perplexity": sum(len(text.split()) + 1 for _, text in kept),
              "character_perplexity": sum(len(text) + 1 for _, text in kept)}
    signatures = {metric: f"unit:{unit}|end:yes" for metric, unit in UNITS.items()}
    signatures["perplexity"] += f"|vocabulary:{tokenizer.vocab_size}|tokenizer:{tokenizer.fingerprint[:8]}"
    return {
        metric: Score(perplexity(total, counts[metric]), signatures[metric],
                      {"negative_log_likelihood": total, "units": counts[metric], "lines": len(kept)},
                      translator.precision)
        for metric in metrics
    }


def evaluate_tests(
    translator: "Translator", recipe: "Recipe", metrics: Sequence[str] | None = None,
    translate: Translate | None = None,
) -> dict[str, dict[str, Score]]:
    """Return the scores of each of the recipe's test sets, without cleaning.

    Args:
        metrics: None: the recipe's.
        translate: see `score_pairs`.

    Raises:
        CorpusError, UserError: as corpus_scores; or a test set cannot be read.
    """
    # All test sets are read before the first one is translated, so that errors show at once.
    tests = {
        name: [(source, target) for _, source, target in read_pairs(recipe, spec)]
        for name, spec in recipe.data.test.items()
    }
    metrics = metrics or recipe.measures
    return {name: score_pairs(translator, pairs, metrics, translate) for name, pairs in tests.items()}


def require_metrics(metrics: Sequence[str], language: str) -> None:
    """Raise UserError if BLEU of this language needs an optional package that is not installed."""
    if "bleu" in metrics:
        sacrebleu_metric("bleu", language)


def format_scores(scores: Mapping[str, Score]) -> str:
    """Format a line for each metric: name, value, signature, precision, and the details of BLEU."""
    width = max((len(TITLES.get(metric, metric)) for metric in scores), default=0)
    rows = []
    for metric, score in scores.items():
        row = f"{TITLES.get(metric, metric):<{width}}  {score.value:6.2f}  {score.signature}"
        if score.precision:
            row += f"  precision:{score.precision}"
        if metric == "bleu":
            precisions = "/".join(f"{precision:.1f}" for precision in score.details["precisions"])
            row += f"  ({precisions}, brevity penalty {score.details['brevity_penalty']:.3f})"
        rows.append(row)
    return "\n".join(rows)


def to_dict(scores: Mapping[str, Score]) -> dict[str, dict[str, Any]]:
    """The scores as JSON values, with nothing rounded."""
    return {
        metric: {"value": score.value, "signature": score.signature,
                 **({"precision": score.precision} if score.precision else {}), **score.details}
        for metric, score in scores.items()
    }


def check_expected(
    scores_by_test: Mapping[str, Mapping[str, Score]], expected: Mapping[str, Mapping[Any, Sequence[float]]]
) -> list[str]:
    """A warning for each score that is outside the [low, high] its recipe promises, or was not measured.

    Args:
        scores_by_test: by test set, then metric.
        expected: the recipe's ranges, likewise; both ends are inside.
    """
    warnings = []
    for test, ranges in expected.items():
        for metric, (low, high) in ranges.items():
            score = scores_by_test.get(test, {}).get(metric)
            if score is None:
                warnings.append(f"{test}: {metric} was not measured; {low:g} to {high:g} was expected.")
            elif not low <= score.value <= high:
                side = "below" if score.value < low else "above"
                warnings.append(f"{test}: {metric} is {score.value:.2f}, {side} the expected {low:g} to {high:g}.")
    return warnings


def sacrebleu_metric(metric: str, language: str) -> BLEU | CHRF | TER:
    """bleu, chrf or ter, as sacreBLEU computes it for text in this language.

    Raises:
        OptionError: there is no such metric.
        UserError: the language needs an optional package.
    """
    if metric == "chrf":
        return CHRF()
    if metric == "ter":
        # Without spaces TER would take a whole sentence for one word; sacreBLEU can split it into characters instead.
        characters = main_language(language) in ("zh", "ja")
        return TER(normalized=characters, asian_support=characters)
    if metric != "bleu":
        raise OptionError(f"there is no metric {metric!r}. Use one of {', '.join((*METRICS, 'exact'))}.")
    tokenizer = bleu_tokenizer(language)
    try:
        # force: without it three lines about tokenised text go to the terminal at every validation. `check` and
        # `score_files` say it once.
        return BLEU(tokenize=tokenizer, force=True)
    except RuntimeError as error:  # sacreBLEU's way to say that a package is missing
        extra = main_language(language)
        raise UserError(
            f"BLEU for {language!r} needs the {tokenizer} tokeniser: pip install 'sacrebleu[{extra}]'"
        ) from error


def _score(metric: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str,
           precision: str | None) -> Score:
    if metric == "exact":
        equal = sum(hypothesis in lines for hypothesis, lines in zip(hypotheses, zip(*references, strict=True),
                                                                     strict=True))
        return Score(100 * equal / len(hypotheses), f"nrefs:{len(references)}|case:mixed|equal:line",
                     precision=precision)
    computed = sacrebleu_metric(metric, language)
    result = computed.corpus_score(hypotheses, references)
    details = {}
    if metric == "bleu":
        details = {
            "brevity_penalty": result.bp,
            "precisions": list(result.precisions),
            "hypothesis_length": result.sys_len,
            "reference_length": result.ref_len,
        }
    return Score(result.score, str(computed.get_signature()), details, precision)


def require_parallel(hypotheses: Sequence[str], references: Sequence[Sequence[str]], names: Sequence[str]) -> None:
    """Raises CorpusError unless each of the references has a line for each hypothesis. names: of all of them."""
    if not references:
        raise CorpusError("There are no references to compare with.")
    if not hypotheses:
        raise CorpusError(f"There is nothing to evaluate: {names[0]}: 0 lines.")
    for stream, name in zip(references, names[1:], strict=True):
        if len(stream) != len(hypotheses):
            raise CorpusError(
                f"{names[0]}: {len(hypotheses):,} lines; {name}: {len(stream):,} lines. They must match line by line; "
                "translate the whole test set again, and look for blank lines that a tool has dropped."
            )
        # A score against nothing would be a number all the same (BLEU 0, TER 100).
        if not any(line.strip() for line in stream):
            raise CorpusError(f"There is nothing to compare with: {name}: all lines are blank.")
