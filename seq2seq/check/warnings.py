"""Warnings of `check`, with their remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seq2seq.check.report import CorpusReport
from seq2seq.data.line_splitting import SPACELESS, main_language
from seq2seq.data.number_agreement import NUMBER_WORD_LANGUAGES
from seq2seq.evaluation.scores import TOKENIZED
from seq2seq.recipe import Languages, Recipe, TrainingSection
from seq2seq.recipe.language_codes import code_for

# A few sentences such as "Thank you." stand in train and test of every corpus; more than this share is worth a warning.
TOLERATED_OVERLAP = 0.01
# So large a share of lines of a kind is no accident: with what to do.
NOTICED = {
    "duplicate": (0.1, "repeat an earlier pair", "data.cleaning.remove_duplicates keeps one of each."),
    "identical": (0.02, "are the same text on both sides",
                  "A model learns to copy from them: data.cleaning.remove_identical drops them."),
    "damaged": (0.002, "are damaged", "Characters were lost or read in a wrong encoding: mend the text, or set "
                       "data.cleaning.remove_damaged."),
    "html_entities": (0.005, "hold HTML (&quot; and the like)", "Decode it on both sides."),
    "numbers_differ": (0.03, "have a number in digits that the other side lacks",
                       "data.cleaning.min_number_agreement: 0.7 drops most of them."),
}
MISALIGNED = 0.01
# Sets that are held out are judged by what train has taught, and may be of another domain.
MISALIGNED_HELD_OUT = 0.03
WRONG_SIDE = 0.005
SWAPPED = 0.5
# Short lines and lists of names are taken for another language at times.
WRONG_LANGUAGE = 0.03
# Text like that of train has less than 1 %; a character that the vocabulary lacks takes two to four bytes.
WITHOUT_PIECES = 0.05

MOST_EPOCHS = 100
"""Three times as many as the longest training of a recipe in `recipes/` (3 to 32). More are mostly the default of
`max_steps` on a small text."""


def look_at(corpus: CorpusReport, sources: Sequence[str] | None, found: set[str], languages: Languages,
            warnings: list[str]) -> None:
    """Append warnings about a corpus to `warnings`."""
    if corpus.error:
        for path, values in corpus.files.items():
            if values.get("not_utf8"):
                warnings.append(f"{path}: {values['not_utf8']:,} of {values['lines']:,} lines are not UTF-8 (such as "
                                f"line {values['such_as'][0]:,}); it seems to be {values['seems']}.")
        return
    _look_at_lines(corpus, languages, warnings)
    _look_at_judgement(corpus, warnings)
    if sources is None:
        read = corpus.pairs + sum(corpus.counts.dropped.values())
        if corpus.pairs < read / 2:
            warnings.append(f"{corpus.label}: cleaning drops {read - corpus.pairs:,} of {read:,} pairs. "
                            "Look at an example line of each reason, and at data.cleaning.")
        return
    if not sources:
        warnings.append(f"{corpus.role} has no pairs.")
        return
    what = f"{next(iter(corpus.sides))}s"                                        # sources, or texts
    blank = [number for number, source in enumerate(sources, start=1) if not source.strip()]
    if blank:
        remedy = "check that both sides are still parallel" if "target" in corpus.sides else "each counts as its end"
        warnings.append(f"{corpus.role}: {len(blank):,} {what} are empty (line {blank[0]:,}); {remedy}.")
    lines = [number for number, source in enumerate(sources, start=1) if source in found]
    corpus.in_train, corpus.in_train_example = len(lines), lines[0] if lines else None
    corpus.in_train_lines = lines
    if len(lines) > TOLERATED_OVERLAP * len(sources):
        warnings.append(f"{corpus.role}: {len(lines):,} of {len(sources):,} {what} stand in train too (such as line "
                        f"{lines[0]:,}), so its scores flatter the model. Take them out of train.")


def look_at_tokenization(corpora: Sequence[CorpusReport], warnings: list[str]) -> None:
    """Say once of all corpora whether their target text is tokenised, and what that does to scores."""
    found = [(corpus, corpus.findings["tokenised_target"]) for corpus in corpora
             if not corpus.error and "tokenised_target" in corpus.findings]
    found = [(corpus, finding) for corpus, finding in found if finding.count > max(TOKENIZED * corpus.lines, 2)]
    if found:
        first, finding = found[0]
        names = ", ".join(f"{corpus.role} {corpus.label}" for corpus, _ in found)
        warnings.append(
            f"{names}: the target text looks tokenised: in {finding} of {first.lines:,} lines of {first.label} "
            "punctuation stands apart. sacreBLEU tokenises again, so that these scores compare neither with those of "
            "raw text nor with a paper's on tokenised text. Detokenise the text; or, for the figure of a paper, write "
            "translations by seq2seq translate and score them with: sacrebleu REFERENCE -i TRANSLATIONS --force "
            "--tokenize none")


def look_at_languages(languages: Languages, warnings: list[str]) -> None:
    """Say which languages are given by another name than their code."""
    for side, name in (("source", languages.source), ("target", languages.target)):
        if name and (code := code_for(name)):
            warnings.append(f"languages.{side}: {name} is no code of a language. If it is to mean {code}, write "
                            f"{code}: BLEU's tokeniser, number words and the treatment of languages without spaces go "
                            "by the code.")


def look_at_epochs(section: TrainingSection, training: Mapping[str, Any], warnings: list[str]) -> None:
    """Say that a training without early stopping goes through its text very often.

    training: `Report.training`.
    """
    if section.early_stopping or training.get("epochs", 0) <= MOST_EPOCHS:
        return
    warnings.append(f"training.max_steps: {section.max_steps:,} steps go through this text {training['epochs']:,.0f} "
                    f"times; the recipes that come with seq2seq end after 3 to 32 epochs. {MOST_EPOCHS} are "
                    f"{MOST_EPOCHS * training['steps_per_epoch']:,} steps: lower max_steps, or let "
                    "training.early_stopping: 10 end the training after 10 validations without improvement.")


def look_at_words(recipe: Recipe, warnings: list[str]) -> None:
    """Say that a vocabulary of whole words is of no use for languages written without spaces."""
    spaceless = [language for language in (recipe.languages.source, recipe.languages.target)
                 if language and main_language(language) in SPACELESS]
    if recipe.tokenizer.type == "words" and spaceless and recipe.tokenizer_model is None:
        warnings.append(f"tokenizer.type: words takes a whole line of {' and '.join(spaceless)} for a word, for no "
                        "spaces part its words. Use unigram, or put spaces between the words.")


def look_at_vocabulary(recipe: Recipe, corpora: Sequence[CorpusReport], warnings: list[str]) -> None:
    """Say in which corpora the vocabulary lacks many characters or words, unless the model can copy them."""
    if recipe.model.copy:
        return
    lacks = "words" if recipe.tokenizer.type == "words" else "characters"
    remedy = (f"It was made for other text: {recipe.tokenizer_model}." if recipe.tokenizer_model is not None else
              "It is made from data.train: add text there, or choose a larger tokenizer.vocab_size.")
    for corpus in corpora:
        for side, lines in corpus.sides.items():
            if lines.unknown is not None and lines.unknown > WITHOUT_PIECES:
                warnings.append(f"{corpus.role} {corpus.label}: {lines.unknown:.1%} of the {side}'s pieces are bytes "
                                f"or unknown, because the vocabulary lacks {lacks} of this text. {remedy}")


def _look_at_lines(corpus: CorpusReport, languages: Languages, warnings: list[str]) -> None:
    words_unknown = sorted({code for code in (languages.source, languages.target)
                            if code and main_language(code) not in NUMBER_WORD_LANGUAGES})
    for kind, (share, what, remedy) in NOTICED.items():
        finding = corpus.findings.get(kind)
        if finding and finding.count > max(share * corpus.lines, 2):
            if kind == "numbers_differ" and words_unknown:
                remedy = (f"Number words of {' and '.join(words_unknown)} are not known here, so look at some of these "
                          f"lines first: {remedy}")
            warnings.append(f"{corpus.role} {corpus.label}: of {corpus.lines:,} lines {finding} "
                            f"{what}. {remedy}")


def _look_at_judgement(corpus: CorpusReport, warnings: list[str]) -> None:
    judgement, where = corpus.judgement, f"{corpus.role} {corpus.label}"
    if judgement is None or not judgement.pairs:
        return
    if slip := judgement.slip:
        warnings.append(f"{where}: from line {slip.first:,} to line {slip.last:,} each source fits the target one line "
                        f"{'later' if slip.by > 0 else 'earlier'}: one side has slipped. Look for a line too much or "
                        f"too little near line {slip.first:,}.")
    tolerated = MISALIGNED if corpus.role == "train" else MISALIGNED_HELD_OUT
    if judgement.misaligned is not None and judgement.misaligned > tolerated and judgement.suspects.count > 2:
        warnings.append(f"{where}: {judgement.suspects} of {judgement.pairs:,} pairs do not look like translations of "
                        f"each other; with those that this test misses, about {judgement.misaligned:.1%}. Look at "
                        "these lines.")
    for judged, findings, share, remedy in (
            (judgement.pairs, judgement.wrong_side, WRONG_SIDE, "looks like the language of the other side; "
             "data.cleaning.language: sides drops such pairs"),
            (judgement.recognised, judgement.wrong_language, WRONG_LANGUAGE, "is in another language, says lingua; "
             "data.cleaning.language: lingua drops such pairs")):
        for side, finding in findings.items():
            if findings is judgement.wrong_side and finding.count > max(SWAPPED * judged, 2):
                warnings.append(f"{where}: the {side} of {finding} of {judged:,} pairs looks like the other side of "
                                "train: source and target may be swapped, here or in data.train, or a file or column "
                                "there may be a wrong one.")
            elif finding.count > max(share * judged, 2):
                warnings.append(f"{where}: the {side} of {finding} of {judged:,} pairs {remedy}.")
