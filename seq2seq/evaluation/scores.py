"""Evaluation of models: BLEU, chrF, TER, exact match and perplexity, each with its signature.

sacreBLEU tokenises detokenised text itself, because BLEU scores are comparable only if tokenisation and settings are
the same (Post 2018, arXiv:1804.08771). Perplexities are comparable only if they have the same unit.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar

from seq2seq import console
from seq2seq.console import html_table
from seq2seq.data.corpus import read_pairs, read_texts
from seq2seq.data.damaged_text import RESTORE_WORDS, is_split_into_subwords
from seq2seq.data.pair_quality import is_tokenized
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.errors import CorpusError, OptionError, UserError
from seq2seq.languages import SPACELESS_CHARACTER, bleu_tokenizer, has_spaceless_words, main_language, ter_tokenizer
from seq2seq.recipe.task import RANGES
from seq2seq.tokenizers.canonical_text import is_blank, looks_different
from seq2seq.tokenizers.line_splitting import word_spans
from seq2seq.translation.text_io import UnseenCharacters

if TYPE_CHECKING:
    from seq2seq.recipe import Recipe
    from seq2seq.translation.scoring import Pair
    from seq2seq.translation.translation import Translation
    from seq2seq.translation.translator import Translator

Translate = Callable[..., "list[list[Translation]]"]
"""Function with the arguments and results of `Translator.translate`."""
METRICS = ("bleu", "chrf", "ter")
"""Default metrics of translations. A fourth metric is `exact`, the percentage of exact matches."""
TOKENIZED_BLEU = "tokenized_bleu"
"""BLEU on words of Moses' tokeniser, with compounds split, as papers report for WMT14."""
COMPOUND = re.compile(r"(\S)-(\S)")
MAX_TOKENIZED_SHARE = 0.2
"""Maximum share of lines with punctuation separated by spaces. Above it, text is considered tokenised."""
PERPLEXITY_UNITS = {"perplexity": "piece", "word_perplexity": "word", "character_perplexity": "character"}
"""Unit of each perplexity metric."""
TITLES = {"bleu": "BLEU", TOKENIZED_BLEU: "tokenised BLEU", "chrf": "chrF", "ter": "TER",
          **{metric: f"perplexity per {unit}" for metric, unit in PERPLEXITY_UNITS.items()}}
"""Name of each metric in tables."""


@dataclass(frozen=True)
class Score:
    """Value of a metric: sacreBLEU's score from 0 to 100, the percentage of exact matches, or a perplexity."""

    value: float
    signature: str
    """For BLEU, chrF and TER: sacreBLEU's signature. For exact match, in the same format: number of references, case,
    unit (line). For a perplexity: its unit; if it is the piece, also the size and the fingerprint of the vocabulary."""
    details: dict[str, Any] = field(default_factory=dict)
    """For BLEU: brevity_penalty, the precisions of 1-grams to 4-grams, and the lengths of hypotheses and references in
    sacreBLEU's tokens. For a perplexity: the sum of -log p in nats, the number of units, and the number of lines."""
    precision: str | None = None
    """Number format of the model (fp32, bf16, fp16, int8), which is not part of the signature; None if unknown."""


class MetricScores(dict[str, Score]):
    """Scores by metric. A notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return html_table(([TITLES.get(metric, metric), f"{score.value:.2f}", score.precision or "", score.signature]
                           for metric, score in self.items()), ["metric", "score", "precision", "signature"])


class ScoresByTest(dict[str, MetricScores]):
    """Scores by test set and metric. A notebook shows them as tables."""

    def _repr_html_(self) -> str:
        return "".join(f"{html_table([], caption=name)}{scores._repr_html_()}" for name, scores in self.items())


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    language: str,
    metrics: Sequence[str] = METRICS,
    names: Sequence[str] | None = None,
    precision: str | None = None,
) -> MetricScores:
    """Return corpus-level scores of a test set.

    Args:
        hypotheses: translations, one per line, detokenised.
        references: one or more streams, each with a line for every hypothesis.
        language: code of the target language; selects the tokenisers of BLEU and TER.
        metrics: some of bleu, chrf, ter, exact and tokenized_bleu. `exact` is the percentage of hypotheses that are
            equal to their reference, or to one of their references.
        names: names of the hypotheses and of each reference stream in errors, such as their paths.
        precision: number format of the model that produced the hypotheses, if known.
    Raises:
        TypeError: a text was given instead of a list of lines.
    """
    if any(isinstance(lines, str) for lines in (hypotheses, *references)):
        raise TypeError("pass hypotheses as a list of lines, and references as a list of such lists: [lines]")
    if names is None:
        numbers = [f" {number}" for number in range(1, len(references) + 1)] if len(references) > 1 else [""]
        names = ["the hypotheses", *(f"the reference{number}" for number in numbers)]
    require_parallel(hypotheses, references, names)
    return MetricScores({metric: _score(metric, hypotheses, references, language, precision) for metric in metrics})


def score_files(
    hypothesis_path: Path, reference_paths: Sequence[Path], language: str, metrics: Sequence[str] = METRICS
) -> MetricScores:
    """Return the `corpus_scores` of translations in a text file, which may be compressed."""
    paths = [Path(hypothesis_path), *map(Path, reference_paths)]
    hypotheses, *references = [read_texts(path) for path in paths]
    streams = (hypotheses, *references)
    for path, lines in zip(paths, streams, strict=True):
        warn_about_lines(str(path), lines, streams)
    for path, lines in zip(paths[1:], references, strict=True) if "bleu" in metrics else ():
        warn_if_without_spaces(str(path), lines, language)
    return corpus_scores(hypotheses, references, language, metrics, names=[str(path) for path in paths])


def warn_if_without_spaces(name: str, references: Sequence[str], language: str) -> None:
    """Print a warning for text in a script without spaces, if BLEU's tokeniser for `language` needs spaces."""
    text = "".join(references)
    if bleu_tokenizer(language) == "13a" and len(SPACELESS_CHARACTER.findall(text)) > len(text) / 2:
        console.warn(f"{name} is in a script without spaces between words, and BLEU's tokeniser for {language} "
                     "counts the words between spaces. Name the language of the text, such as zh.")


def warn_about_lines(name: str, lines: Sequence[str], parallel: Sequence[Sequence[str]]) -> None:
    """Print a warning if references or translations are no plain text (subwords, tokens, JSON), have blank lines or
    invisible characters, or are not in NFC. sacreBLEU compares the characters, and the scores are to be equal to those
    of its command, so the text is not changed.

    parallel: the lines of all texts. A line that is blank in all of them is no fault: it separates two documents.
    """
    texts = [line for line in lines if not is_blank(line)]
    if sum(map(is_split_into_subwords, lines)) > MAX_TOKENIZED_SHARE * len(lines):
        console.warn(f"{name} contains marks of subwords, such as @@ or ▁, so scores are those of subwords. "
                     f"{RESTORE_WORDS}")
    elif sum(map(is_tokenized, lines)) > MAX_TOKENIZED_SHARE * len(lines):
        console.warn(f"{name} looks tokenised (full stops and commas are separated by spaces), and sacreBLEU tokenises "
                     "again. Detokenise it; or, to compare with a paper on tokenised text, use sacrebleu --force "
                     "--tokenize none.")
    elif texts and all(line.startswith("{") and line.endswith("}") for line in texts):
        console.warn(f"{name}: each line is in braces, as in JSON Lines, and the scores are those of this text. To "
                     "write translations alone, leave out --format jsonl.")
    if blank := [number for number, (line, *others) in enumerate(zip(lines, *parallel, strict=False), 1)
                 if is_blank(line) and not all(map(is_blank, others))]:
        console.warn(f"{name}: {len(blank):,} of {len(lines):,} lines are blank (first: line {blank[0]:,}), which the "
                     "scores count. Check that sources, references and translations are still parallel.")
    if count := sum(map(looks_different, lines)):
        console.warn(f"{name}: {count:,} of {len(lines):,} lines have invisible characters, or combining characters "
                     "where Unicode NFC has precomposed ones. Text that looks the same counts as different, so scores "
                     "are too low. Convert the text to NFC, and remove the invisible characters.")


def announce(translator: "Translator", lines: int, name: str) -> None:
    """Print that a loaded model begins to translate a set. On a pipe, there is no progress bar."""
    if translator.directory:
        console.print_message(f"translating {lines:,} line{'s' * (lines != 1)} of {name} with {translator.directory} "
                              f"in {translator.precision}")


def warn_about_unseen(name: str, found: "Sequence[Sequence[Translation]]") -> None:
    """Print a warning if sources have characters that the model's training text never had. found: n-best lists."""
    unseen = UnseenCharacters(name)
    for line, (best, *_) in enumerate(found, 1):
        unseen.add(f"line {line}", best.unseen)
    unseen.finish()


def score_pairs(
    translator: "Translator", pairs: "Sequence[Pair]", metrics: Sequence[str] = METRICS,
    translate: Translate | None = None, language: str | None = None, name: str = "the test set",
    further_references: Sequence[Sequence[str]] = (),
) -> MetricScores:
    """Return the scores of a model on sentence pairs.

    Args:
        metrics: metrics of `corpus_scores` and `perplexities`. The model translates only for those of `corpus_scores`.
        translate: function that translates the sources; None: `translator.translate`. Distributed training passes a
            function that divides the lines among the ranks.
        language: code of the target language; None: the target language of the translator.
        name: name of the pairs in warnings.
        further_references: further references of all sources.
    """
    of_likelihood = [metric for metric in metrics if metric in PERPLEXITY_UNITS]
    of_text = [metric for metric in metrics if metric not in PERPLEXITY_UNITS]
    sources, references = [source for source, _ in pairs], [[target for _, target in pairs], *further_references]
    scores = MetricScores()
    if of_likelihood:
        given = [pair for stream in references for pair in zip(sources, stream, strict=True)]
        scores |= perplexities(translator, given, of_likelihood)
    if of_text:
        with console.progress("translating", len(pairs)) as advance:
            found = (translate or translator.translate)(sources, progress=advance)
        warn_about_unseen(name, found)
        scores |= corpus_scores([best.text for best, *_ in found], references,
                                language or translator.languages.target, of_text, precision=translator.precision)
    return scores


def perplexities(
    translator: "Translator", pairs: "Sequence[Pair]", metrics: Sequence[str] = tuple(PERPLEXITY_UNITS)
) -> dict[str, Score]:
    """Return the perplexities of the targets, which are exp of the mean -log p per piece, word or character.

    `</s>` counts as a unit, as in the loss and in validation. Perplexities per word and per character can be compared
    between all models on the same text; perplexities per piece, only if the models have the same tokenizer. Words are
    those of `word_spans`: in a language without spaces between words, each character, and the signature says so. Texts
    are measured as the model sees them, without white space at their ends. Pairs with a blank side, and pairs that are
    too long for the model, are not scored; a warning reports their number.
    """
    from seq2seq.model.loss import perplexity  # imported here because BLEU needs no torch
    from seq2seq.translation.scoring import is_text, pair_scores, scorable_pairs

    tokenizer, language, lines = translator.tokenizers.target, translator.languages.target, len(pairs)
    pairs = [pair for pair in pairs if is_text(pair, translator.task.has_source)]
    if len(pairs) < lines:
        console.warn(f"{lines - len(pairs):,} of {lines:,} lines are blank{' on a side' * translator.task.has_source}; "
                     "they are not scored")
    kept = scorable_pairs(translator, pairs)
    if not kept:
        raise CorpusError("There is nothing to evaluate: there are no lines, or all of them are blank or have more "
                          f"than {translator.max_positions - 1} pieces, the limit of the model.")
    if len(kept) < len(pairs):
        console.warn(f"{len(pairs) - len(kept):,} of {len(pairs):,} lines have more than "
                     f"{translator.max_positions - 1} pieces; they are not scored")
    with console.progress("scoring", len(kept)) as advance:
        scored = pair_scores(translator, kept, advance)
    total = -sum(score.log_probability for score in scored)
    texts = [tokenizer.normalized(text) for _, text in kept]
    counts = {"perplexity": sum(score.tokens for score in scored),
              "word_perplexity": sum(len(word_spans(text, language)) + 1 for text in texts),
              "character_perplexity": sum(len(text) + 1 for text in texts)}
    signatures = {metric: f"unit:{unit}|end:yes" for metric, unit in PERPLEXITY_UNITS.items()}
    if has_spaceless_words(language):
        signatures["word_perplexity"] = "unit:character|spaces:no|end:yes"
    signatures["perplexity"] += f"|vocabulary:{tokenizer.vocab_size}|tokenizer:{tokenizer.fingerprint[:8]}"
    return {
        metric: Score(within_range(metric, perplexity(total, counts[metric])), signatures[metric],
                      {"negative_log_likelihood": total, "units": counts[metric], "lines": len(kept)},
                      # Probabilities of given translations are never computed in int8.
                      "fp32" if translator.precision == "int8" else translator.precision)
        for metric in metrics
    }


def evaluate_tests(
    translator: "Translator", recipe: "Recipe", metrics: Sequence[str] | None = None,
    translate: Translate | None = None, names: Collection[str] | None = None,
) -> ScoresByTest:
    """Return the scores of each test set in the recipe. Test sets are not cleaned.

    Args:
        metrics: metrics to compute; None: those of the recipe.
        translate: see `score_pairs`.
        names: names of the test sets; None: all.
    """
    # Read all test sets before the first one is translated, so that errors are reported before any translation.
    tests = {
        name: [(source, target) for _, source, target in read_pairs(recipe, spec)]
        for name, spec in recipe.data.test.items() if names is None or name in names
    }
    metrics = metrics or recipe.measures
    for name, pairs in tests.items() if not PERPLEXITY_UNITS.keys() >= set(metrics) else ():
        targets = [target for _, target in pairs]
        warn_about_lines(name, targets, [[source.text for source, _ in pairs], targets])
    scores = ScoresByTest()
    for name, pairs in tests.items():
        if not PERPLEXITY_UNITS.keys() >= set(metrics):
            announce(translator, len(pairs), name)
        language = recipe.languages_of(recipe.data.test[name]).target
        scores[name] = score_pairs(translator, pairs, metrics, translate, language, name)
    return scores


def require_metrics(recipe: "Recipe") -> None:
    """Raise UserError if BLEU for a target language of the recipe needs a package that is not installed."""
    if "bleu" in recipe.measures:
        for corpus in recipe.data.held_out().values():
            sacrebleu_metric("bleu", recipe.languages_of(corpus).target)


def format_scores(scores: Mapping[str, Score]) -> str:
    """Return a table with a line per metric: name, value, signature, model precision, and the details of BLEU.

    *length* is that of the translations divided by that of the references. BLEU has no penalty for long translations,
    but their n-grams have a lower precision. A smaller `decoding.length_penalty` makes translations shorter.
    """
    width = max((len(TITLES.get(metric, metric)) for metric in scores), default=0)
    rows = []
    for metric, score in scores.items():
        row = f"{TITLES.get(metric, metric):<{width}}  {score.value:6.2f}  {score.signature}"
        if score.precision:
            row += f"  precision:{score.precision}"
        if metric == "bleu":
            precisions = "/".join(f"{precision:.1f}" for precision in score.details["precisions"])
            # sacreBLEU counts no token in a line such as "<skipped>".
            ratio = score.details["hypothesis_length"] / max(score.details["reference_length"], 1)
            row += f"  ({precisions}, brevity penalty {score.details['brevity_penalty']:.3f}, length {ratio:.3f})"
        rows.append(row)
    return "\n".join(rows)


def to_dict(scores: Mapping[str, Score]) -> dict[str, dict[str, Any]]:
    """Return the scores as JSON values, not rounded."""
    return {
        metric: {"value": score.value, "signature": score.signature,
                 **({"precision": score.precision} if score.precision else {}), **score.details}
        for metric, score in scores.items()
    }


def check_expected(
    scores_by_test: Mapping[str, Mapping[str, Score]], expected: Mapping[str, Mapping[Any, Sequence[float]]]
) -> list[str]:
    """Return a warning for each score that is missing, or outside the range that the recipe expects.

    Args:
        scores_by_test: scores by test set and metric.
        expected: inclusive ranges (lowest, highest) by test set and metric.
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


def within_range(metric: str, value: float) -> float:
    """Return a score without the rounding error that takes it out of the range of its metric; NaN stays NaN."""
    low, high = RANGES[metric]
    return min(max(float(value), low), high)


def sacrebleu_metric(metric: str, language: str) -> BLEU | CHRF | TER:
    """Return sacreBLEU's metric for text in this language. metric: bleu, chrf or ter. All its scores, also those of
    resampled test sets, are numbers of Python within the range of the metric.
    """
    found: Any = _sacrebleu_metric(metric, language)
    found._compute_score_from_stats = partial(_score_within_range, metric, found._compute_score_from_stats)
    return found


def _score_within_range(metric: str, compute: Callable[[Any], Any], statistics: Any) -> Any:
    """Return the score that sacreBLEU computes from its statistics. Its BLEU of equal texts is 100.00000000000004. Some
    scores of texts that are almost empty are numbers of NumPy, which it cannot average with Python's."""
    found = compute(statistics)
    found.score = within_range(metric, found.score)
    return found


def _sacrebleu_metric(metric: str, language: str) -> BLEU | CHRF | TER:
    if metric == "chrf":
        return CHRF()
    if metric == "ter":
        # TER would treat a sentence without spaces as one word.
        tokenizer = ter_tokenizer(language)
        ter = TER(normalized=tokenizer == "asian", asian_support=tokenizer == "asian")
        if tokenizer == "char":
            ter.tokenizer = _LowerCaseCharacters()
            ter.tokenizer_signature = ter.tokenizer.signature()
        return ter
    if metric == TOKENIZED_BLEU:
        # As multi-bleu.perl: no smoothing.
        bleu = BLEU(tokenize="none", smooth_method="none", force=True)
        bleu.tokenizer = _PaperTokenizer(language)
        bleu.tokenizer_signature = bleu.tokenizer.signature()
        return bleu
    if metric != "bleu":
        if metric in PERPLEXITY_UNITS:
            raise OptionError(f"{metric} needs a model, and these are translations without one.")
        raise OptionError(f"there is no metric {metric!r}. Use one of {', '.join((*METRICS, 'exact'))}.")
    tokenizer = bleu_tokenizer(language)
    try:
        # Without force=True, sacreBLEU logs three lines about tokenised text at every validation. `seq2seq check` and
        # `score_files` warn about tokenised text once.
        return BLEU(tokenize=tokenizer, force=True)
    except RuntimeError as error:  # raised by sacreBLEU if a package is missing
        extra = main_language(language)
        raise UserError(
            f"BLEU for {language!r} needs the {tokenizer} tokeniser: pip install 'sacrebleu[{extra}]'"
        ) from error


class _PaperTokenizer:
    """Tokenisation of the WMT14 scores in papers, such as those of "Attention Is All You Need": Moses' tokeniser after
    its replacement of Unicode's punctuation, and compounds split at their hyphens. It is that of the script
    get_ende_bleu.sh of tensor2tensor (2017)."""

    def __init__(self, language: str) -> None:
        try:
            from sacremoses import MosesPunctNormalizer, MosesTokenizer
        except ImportError as error:
            raise UserError("tokenized_bleu needs Moses' tokeniser: pip install 'seq2seq-mt[moses]'") from error
        self._language = main_language(language)
        self._punctuation, self._words = MosesPunctNormalizer(self._language), MosesTokenizer(self._language)

    def __call__(self, line: str) -> str:
        words = str(self._words.tokenize(self._punctuation.replace_unicode_punct(line), return_str=True))
        return COMPOUND.sub(r"\1 ##AT##-##AT## \2", words)

    def signature(self) -> str:
        return f"moses-{self._language}-compounds-split"


class _LowerCaseCharacters(TokenizerChar):  # type: ignore[misc]
    """Tokeniser of TER into characters. TER ignores case."""

    def __call__(self, line: str) -> str:
        return str(super().__call__(line.lower()))


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
    if metric in ("bleu", TOKENIZED_BLEU):
        details = {
            "brevity_penalty": result.bp,
            "precisions": list(result.precisions),
            "hypothesis_length": result.sys_len,
            "reference_length": result.ref_len,
        }
    return Score(result.score, str(computed.get_signature()), details, precision)


def require_parallel(hypotheses: Sequence[str], references: Sequence[Sequence[str]], names: Sequence[str]) -> None:
    """Raise CorpusError if there are no lines, the numbers of lines differ, or a reference stream has only blank lines.

    names: name of the hypotheses, then of each reference stream, for messages.
    """
    if not references:
        raise CorpusError("There are no references to compare with. Give at least one.")
    if not hypotheses:
        raise CorpusError(f"There is nothing to evaluate: {names[0]}: 0 lines.")
    require_as_many_lines(names, *map(len, (hypotheses, *references)))
    for stream, name in zip(references, names[1:], strict=True):
        # sacreBLEU would compute meaningless scores for blank references (BLEU 0, TER 100).
        if all(map(is_blank, stream)):
            raise CorpusError(f"There is nothing to compare with: {name}: all lines are blank.")
