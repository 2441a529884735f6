"""Warnings of `check`, each with a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seq2seq.check.results import CorpusReport, Finding, PairReport
from seq2seq.data.damaged_text import RESTORE_WORDS
from seq2seq.data.leakage import overlap_warning
from seq2seq.evaluation.scores import MAX_TOKENIZED_SHARE
from seq2seq.languages import has_spaceless_words, language_name, main_language
from seq2seq.recipe import Cleaning, Languages, Recipe, TrainingSection
from seq2seq.recipe.advice import Proposal, advice

# For each kind of line: share of lines above which a warning is given, description of the lines, remedy without
# cleaning, key of data.cleaning that drops such training pairs ("": none), and remedy with this key.
LINE_WARNINGS = {
    "duplicate": (0.1, "repeat an earlier pair", "Each copy counts.", "remove_duplicates",
                  "data.cleaning.remove_duplicates keeps one copy of each pair."),
    "identical": (0.02, "have the same text on both sides", "Check that both sides are in the right language.",
                  "remove_identical",
                  "A model that is trained on them learns to copy. data.cleaning.remove_identical drops them."),
    "damaged": (0.002, "are damaged", "Characters were lost or read in a wrong encoding: repair the text.",
                "remove_damaged", "Characters were lost or read in a wrong encoding: repair the text, or set "
                                  "data.cleaning.remove_damaged."),
    "html_entities": (0.005, "contain HTML entities such as &quot;",
                      "Replace each entity by its character, on both sides.", "", ""),
    "csv_quotes": (0.002, 'are in double quotes, with their own ones doubled, as in "He said ""yes"""',
                   "A .tsv is read without quotes. Write it without them (in pandas, quoting=csv.QUOTE_NONE), or as "
                   ".csv.", "", ""),
    "split_into_subwords": (0.1, "contain marks of subwords, such as @@ or ▁",
                            "The tokenizer makes subwords itself, and scores of subwords are not comparable. "
                            + RESTORE_WORDS, "", ""),
    "tokenised_source": (MAX_TOKENIZED_SHARE, "have a source that looks tokenised: punctuation is separated by spaces",
                         "A model that is trained on such text translates ordinary text less well. Detokenise the "
                         "source, unless all text that will be translated is tokenised, too.", "", ""),
    "numbers_differ": (0.03, "have a number in digits that the other side lacks",
                       "Number words are not recognised, so check some of these lines.", "min_number_agreement",
                       "Number words are not recognised, so check some of these lines first: "
                       "data.cleaning.min_number_agreement: 0.7 drops most of them."),
}
# For each kind of line that looks the same as other text: description, and what a canonical tokenizer does about it.
LOOKALIKE_WARNINGS = {
    "not_in_nfc": ("are not in Unicode NFC, such as u followed by U+0308 for ü", "writes them in NFC"),
    "invisible_characters": ("have invisible characters, such as zero-width spaces or soft hyphens", "removes them"),
    "special_spaces": ("have no-break spaces, tabs or other special spaces", "turns them into ordinary spaces"),
}
MAX_LOOKALIKE_SHARE = 0.01
"""A warning is given if more than this share of the lines looks the same as other text. The table of lines has all."""
MAX_MISALIGNED_SHARE = 0.01
"""A warning is given if the estimated share of misaligned training pairs is higher than this."""
MAX_MISALIGNED_SHARE_HELD_OUT = 0.03
"""As MAX_MISALIGNED_SHARE, for validation and test corpora. This limit is higher, because the translation tables that
score these pairs are trained on the training text, which may be of another domain."""
MAX_WRONG_SIDE_SHARE = 0.005
"""A warning is given if more than this share of the lines looks like the language of the other side."""
MAX_WRONG_LANGUAGE_SHARE = 0.03
"""A warning is given if, according to lingua, more than this share of the lines is in another language. Lingua
misclassifies some short lines and lists of names."""
MAX_UNKNOWN_SHARE = 0.05
"""A warning is given if more than this share of the pieces are bytes or unknown. In text like the training text, the
share is below 1 %. A character that is not in the vocabulary is encoded as two to four bytes."""
EPOCHS_WARNING_THRESHOLD = 100
"""A warning is given if a training has more epochs than this. Most recipes in `recipes/` train for 3 to 38 epochs. More
than 100 epochs usually mean that the text is small and that `max_steps` has its default value."""
MIN_CONSISTENCY_EPOCHS = 20
"""A warning is given if consistency training has fewer epochs. Between 14 and 30 epochs, its gain was not measured."""


PAIR_FILTERS = ("max_length_ratio", "remove_identical", "min_number_agreement", "max_length_deviation")
"""Keys of data.cleaning that compare the two sides of a pair."""


def add_corpus_warnings(corpus: CorpusReport, cleaning: Cleaning, warnings: list[str]) -> None:
    """Append the warnings about a corpus to `warnings`. Those about a training corpus are about the pairs that cleaning
    keeps. cleaning: section `data.cleaning` of the recipe, whose keys that are set are not recommended."""
    if corpus.error:
        return
    add_line_warnings(corpus, cleaning, warnings)
    _add_pair_warnings(corpus, cleaning, warnings)
    if corpus.role == "train":
        read = corpus.pairs + sum(corpus.counts.dropped.values())
        if corpus.pairs < read / 2:
            warnings.append(f"{corpus.label}: cleaning drops {read - corpus.pairs:,} of {read:,} pairs. For each "
                            "reason, check an example line. If these lines are good, relax data.cleaning.")
        return
    if not corpus.pairs:
        warnings.append(f"{corpus.role} has no pairs.")
        return
    for side, finding in corpus.blank.items():
        remedy = ("check that both sides are still parallel" if "target" in corpus.sides else
                  "for these lines, only the end of sentence is scored")
        warnings.append(f"{corpus.role}: {finding.count:,} {side}s are empty (line {finding.lines[0]:,}); {remedy}.")
    if warning := overlap_warning(corpus.role, corpus.in_train):
        warnings.append(warning)


def train_warnings(corpus: CorpusReport, cleaning: Cleaning) -> list[str]:
    """Return the warnings about the text of a training corpus. cleaning: see `add_corpus_warnings`."""
    warnings: list[str] = []
    add_corpus_warnings(corpus, cleaning, warnings)
    add_tokenization_warnings([corpus], warnings)
    return warnings


def add_lookalike_warnings(corpus: CorpusReport, canonical: bool, warnings: list[str]) -> None:
    """Append a warning for each kind of text that looks the same as other text and is frequent. canonical: True if the
    tokenizer makes such texts equal."""
    for kind, (description, change) in LOOKALIKE_WARNINGS.items():
        if kind in corpus.findings and corpus.findings[kind].count > max(MAX_LOOKALIKE_SHARE * corpus.lines, 2):
            remedy = f"The tokenizer {change}, so the model sees no difference." if canonical else (
                f"The tokenizer does not change them; tokenizer.normalization: canonical {change}.")
            if corpus.role != "train" and kind != "special_spaces":
                remedy += " sacreBLEU sees the difference in references."
            warnings.append(f"{corpus.role} {corpus.label}: of {corpus.lines:,} lines, {corpus.findings[kind]} "
                            f"{description}. {remedy}")


def frequent_kinds(findings: Mapping[str, Finding], lines: int) -> list[str]:
    """Return the kinds of lines in LINE_WARNINGS that are so frequent among some lines that a warning is given.

    findings: lines of each kind. lines: number of all lines.
    """
    return [kind for kind, (share, *_) in LINE_WARNINGS.items()
            if kind in findings and findings[kind].count > max(share * lines, 2)]


def add_tokenization_warnings(corpora: Sequence[CorpusReport], warnings: list[str]) -> None:
    """Append one warning that names all corpora with tokenised target text, and says how this affects scores."""
    tokenized = [(corpus, corpus.findings["tokenised_target"]) for corpus in corpora
                 if not corpus.error and "tokenised_target" in corpus.findings]
    tokenized = [(corpus, finding) for corpus, finding in tokenized
                 if finding.count > max(MAX_TOKENIZED_SHARE * corpus.lines, 2)]
    if tokenized:
        first, finding = tokenized[0]
        names = ", ".join(f"{corpus.role} {corpus.label}" for corpus, _ in tokenized)
        warnings.append(
            f"{names}: the target text looks tokenised: in {finding} of {first.lines:,} lines of {first.label}, "
            "punctuation is separated by spaces. sacreBLEU tokenises again, so the scores can be compared neither with "
            "scores on raw text nor with published scores on tokenised text. Detokenise the text. Or, to compare "
            "with published scores of tokenised text, keep it, run seq2seq translate, and score the translations with: "
            "sacrebleu REFERENCE -i TRANSLATIONS --force --tokenize none")


def add_warnings_about_steps(recipe: Recipe, warnings: list[str]) -> None:
    """Append a warning for each key of the recipe that has no effect, or not the intended effect, because the training
    has too few steps or corpora."""
    section, data = recipe.training, recipe.data
    if section.warmup_steps >= section.max_steps:
        rate = section.max_steps / section.warmup_steps
        warnings.append(f"training.warmup_steps: {section.warmup_steps:,} steps of warm-up, but training.max_steps is "
                        f"{section.max_steps:,}. The learning rate rises to {rate:.0%} of training.learning_rate until "
                        "the last step, and the schedule has no effect. Lower warmup_steps, for example to "
                        f"{max(1, section.max_steps // 10):,}, or raise max_steps.")
    validations = -(-section.max_steps // section.validate_every)
    times = f"{validations:,} validation{'s' * (validations > 1)}"
    if "validate_every" in section.model_fields_set and section.validate_every > section.max_steps:
        warnings.append(f"training.validate_every: {section.validate_every:,} is above training.max_steps "
                        f"({section.max_steps:,}), so that only the last step is validated. Lower validate_every.")
    if section.early_stopping >= validations:
        warnings.append(f"training.early_stopping: {section.early_stopping:,} validations without improvement cannot "
                        f"occur before the end: {section.max_steps:,} steps have {times}. "
                        f"{_more_validations(recipe, Proposal('lower early_stopping', 'training.early_stopping', 1))}")
    if section.average.kind != "none" and section.average.count > validations:
        warnings.append(f"training.average.count: {section.average.count} validated checkpoints cannot be averaged: "
                        f"{section.max_steps:,} steps have {times}. "
                        f"{_more_validations(recipe, Proposal('lower average.count', 'training.average.count', 1))}")
    if data.temperature != 1 and len(data.train) == 1:
        warnings.append("data.temperature: there is only one training corpus, so that this key has no effect. Leave it "
                        "out, or write the corpora as several items of data.train.")
    if not recipe.task.has_source:
        keys = [key for key in PAIR_FILTERS if getattr(data.cleaning, key) != Cleaning.model_fields[key].default]
        if keys:
            warnings.append(f"{' and '.join(f'data.cleaning.{key}' for key in keys)}: no effect on the text of a "
                            "language model, which has only one side. Leave out what compares two sides.")


def _more_validations(recipe: Recipe, proposal: Proposal) -> str:
    return advice(recipe, [proposal, Proposal("lower validate_every", "training.validate_every", 1),
                           "raise max_steps"]).capitalize() + "."


def add_direction_warnings(recipe: Recipe, warnings: list[str]) -> None:
    """Append a warning for each validation or test corpus in a direction in which no training corpus translates."""
    def languages_of(direction: Languages) -> list[str]:
        return [main_language(code) for code in direction.codes if code]

    trained = list(map(languages_of, recipe.directions))
    for key, spec in recipe.data.held_out().items():
        direction = recipe.languages_of(spec)
        if languages_of(direction) not in trained:
            warnings.append(f"{key}: no training corpus translates from {direction.source} to {direction.target}. If "
                            "a code is wrong, correct it. Otherwise, expect very low scores: a direction without "
                            "training pairs is hardly learned.")


def add_epoch_warnings(section: TrainingSection, training: Mapping[str, Any], warnings: list[str]) -> None:
    """Append warnings if consistency training has few epochs, or a training without early stopping very many. The model
    that a training continues has had epochs of its own.

    training: `Report.training`.
    """
    if section.consistency and section.start_from is None and 0 < training.get("epochs", 0) < MIN_CONSISTENCY_EPOCHS:
        warnings.append(f"training.consistency: {section.max_steps:,} steps are {training['epochs']:,.1f} epochs of "
                        "this text. Consistency training lowered BLEU in trainings of 5 and 9 epochs, did not pay in "
                        "14, and raised it in 30 or more (recipes/multi30k). Raise max_steps, or leave this key out.")
    if section.early_stopping or training.get("epochs", 0) <= EPOCHS_WARNING_THRESHOLD:
        return
    warnings.append(f"training.max_steps: {section.max_steps:,} steps are {training['epochs']:,.0f} epochs of this "
                    f"text. Lower max_steps ({EPOCHS_WARNING_THRESHOLD} epochs are "
                    f"{EPOCHS_WARNING_THRESHOLD * training['steps_per_epoch']:,} steps), or set "
                    "training.early_stopping: 10 to stop after 10 validations without improvement.")


def add_word_warnings(recipe: Recipe, warnings: list[str]) -> None:
    """Append a warning if whole words are the vocabulary of a language that is written without spaces."""
    spaceless = [language for language in (recipe.languages.source, recipe.languages.target)
                 if language and has_spaceless_words(language)]
    if recipe.tokenizer.type == "words" and spaceless and recipe.tokenizer_model is None:
        warnings.append(f"tokenizer.type: words treats a whole line of {' and '.join(spaceless)} as one word, because "
                        "there are no spaces between words. Use unigram, or put spaces between the words.")


def add_vocabulary_warnings(recipe: Recipe, corpora: Sequence[CorpusReport], warnings: list[str]) -> None:
    """Append a warning for each side of a corpus on which many pieces are bytes, or many words are unknown.

    Models that copy from the source get no warning.
    """
    if recipe.model.knows_all_characters:
        return
    units = "words" if recipe.tokenizer.type == "words" else "characters"
    remedy = (f"The vocabulary comes from {recipe.tokenizer_model}: take one from a model for such text, or let this "
              "recipe train one." if recipe.tokenizer_model is not None else
              f"The vocabulary is made from data.train: add text with these {units} there.")
    for corpus in corpora:
        for side, lines in corpus.sides.items():
            if lines.unknown is not None and lines.unknown > MAX_UNKNOWN_SHARE:
                warnings.append(f"{corpus.role} {corpus.label}: {lines.unknown:.1%} of the {side}'s pieces are bytes "
                                f"or unknown, because the vocabulary lacks {units} of this text. {remedy}")


def languages_in_words(report: PairReport) -> str:
    """Return in words that most lines of a side look like another language, or that the sides are exchanged."""
    found = [f"most lines of the {side} look like {language_name(code)} ({code})"
             for side, code in report.other_languages.items()]
    return f"{' and '.join(found)}{': the sides are exchanged' * report.exchanged}"


def _helps(key: str, corpus: CorpusReport, cleaning: Cleaning) -> bool:
    """Return True if a key of `data.cleaning` would change a corpus: a training corpus, if the key is not set yet."""
    return corpus.role == "train" and getattr(cleaning, key) == Cleaning.model_fields[key].default


def add_line_warnings(corpus: CorpusReport, cleaning: Cleaning, warnings: list[str]) -> None:
    """Append a warning for each kind of lines in LINE_WARNINGS that is too frequent."""
    is_train = corpus.role == "train"
    findings, lines = (corpus.remaining, corpus.pairs) if is_train else (corpus.findings, corpus.lines)
    for kind in frequent_kinds(findings, lines):
        _, description, remedy, key, with_key = LINE_WARNINGS[kind]
        remedy = with_key if key and _helps(key, corpus, cleaning) else remedy
        what = "pairs after cleaning" if is_train else "lines"
        warnings.append(f"{corpus.role} {corpus.label}: of {lines:,} {what}, {findings[kind]} {description}. {remedy}")


def _add_pair_warnings(corpus: CorpusReport, cleaning: Cleaning, warnings: list[str]) -> None:
    """Append warnings about misaligned pairs, shifted lines and wrong languages."""
    report, name = corpus.judgement, f"{corpus.role} {corpus.label}"
    if report is None or not report.pairs:
        return
    if shift := report.slip:
        warnings.append(f"{name}: from line {shift.first:,} to line {shift.last:,}, each source fits the target one "
                        f"line {'later' if shift.by > 0 else 'earlier'}: one side is shifted. Look for an extra or a "
                        f"missing line near line {shift.first:,}.")
    if report.unrelated and corpus.role == "train":
        warnings.append(f"{name}: the pairs fit hardly better than random lines of both sides. Many of them, or all, "
                        "do not seem to be translations of each other. Check that line n of one side is the "
                        "translation of line n of the other.")
    maximum = MAX_MISALIGNED_SHARE if corpus.role == "train" else MAX_MISALIGNED_SHARE_HELD_OUT
    if report.misaligned is not None and report.misaligned > maximum and report.suspects.count > 2:
        warnings.append(f"{name}: {report.suspects} of {report.pairs:,} pairs do not look like translations of each "
                        "other; the estimated share of such pairs, including undetected ones, is "
                        f"{report.misaligned:.1%}. Check these lines.")
    if report.other_languages:
        warnings.append(f"{name}: {languages_in_words(report)}. Check the files and columns of source and target here "
                        "and in data.train, and the codes in `languages`.")
    for checked, findings, share, problem, filter in (
            (report.pairs, report.wrong_side, MAX_WRONG_SIDE_SHARE, "looks like the language of the other side",
             "sides"),
            (report.recognised, report.wrong_language, MAX_WRONG_LANGUAGE_SHARE, "is in another language according to "
             "lingua", "lingua")):
        remedy = f"data.cleaning.language: {filter} drops such pairs" if _helps("language", corpus, cleaning) else (
            "check these lines")
        for side, finding in findings.items():
            if side not in report.other_languages and finding.count > max(share * checked, 2):
                warnings.append(f"{name}: the {side} of {finding} of {checked:,} pairs {problem}; {remedy}.")
