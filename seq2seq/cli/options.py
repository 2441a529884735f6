"""Options that several commands have."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from seq2seq.recipe.model_sizes import model_sizes

PAIRS, TEXTS = "SOURCE TARGET | TABLE", "FILE …"
"""Placeholders of the options whose values are all files up to the next option: pairs of text files and files with both
sides, or files with one side."""


class Precision(StrEnum):
    """Number formats of translation and scoring."""

    auto = "auto"
    reference = "reference"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    int8 = "int8"


class ScoringPrecision(StrEnum):
    """Number formats of the log-probabilities of given text."""

    reference = "reference"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class TrainingPrecision(StrEnum):
    """Number formats of training."""

    auto = "auto"
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"


class TextOrLines(StrEnum):
    """Formats of output that is written line by line."""

    text = "text"
    jsonl = "jsonl"


class TextOrJson(StrEnum):
    """Formats of reports."""

    text = "text"
    json = "json"


class PairedMetric(StrEnum):
    """Metrics that a significance test compares."""

    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"


class Metric(StrEnum):
    """Metrics of models and translations."""

    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"
    exact = "exact"
    tokenized_bleu = "tokenized_bleu"
    perplexity = "perplexity"
    word_perplexity = "word_perplexity"
    character_perplexity = "character_perplexity"


class Paired(StrEnum):
    """Significance tests for the difference between two systems."""

    bootstrap = "bootstrap"
    randomization = "randomization"


SEARCH, MACHINE, FORMAT = "Search", "Machine", "Output"
CONSTRAINTS, SAMPLING, MODELS, TRAINED = "Constraints", "Sampling", "Several models", "Recipes that are trained"
RecipeFile = Annotated[Path, typer.Argument(
    metavar="RECIPE", show_default=False,
    help="A recipe in YAML. Its key model.base names a model size "
    f"({', '.join(model_sizes())}) or the file of a model configuration.")]
RecipesToTrain = Annotated[Path, typer.Argument(
    metavar="RECIPE_OR_DIR", show_default=False,
    help="A recipe in YAML, or a directory with numbered recipes, such as 1_baseline.yaml. The key model.base of a "
    f"recipe names a model size ({', '.join(model_sizes())}) or the file of a model configuration.")]
Overrides = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", show_default=False,
    help="Override a key of the recipe, such as training.max_steps=200. Can be repeated.")]
Model = Annotated[Path, typer.Argument(
    metavar="MODEL", help="A bundle, or a run (its best model).", show_default=False)]
ReportFormat = Annotated[TextOrJson, typer.Option("--format", help="Format of the report.", rich_help_panel=FORMAT)]
SourceFile = Annotated[Path, typer.Argument(
    metavar="SOURCE", help="Text, one sentence per line; - is standard input, for one of the two.",
    show_default=False)]
TargetFile = Annotated[Path, typer.Argument(
    metavar="TARGET", help="Translation of SOURCE, line by line; - is standard input, for one of the two.",
    show_default=False)]
Source = Annotated[Path | None, typer.Option(
    "--source", metavar="FILE", help="Text that the models translate, one sentence per line.", show_default=False)]
References = Annotated[list[Path] | None, typer.Option(
    "--reference", metavar="FILE", help="Reference translations of it, one per line. Can be repeated.",
    show_default=False)]
Language = Annotated[str | None, typer.Option(
    "--target-language", metavar="CODE", help="Language of the translations: selects BLEU's "
    "tokeniser, and the output of a model with several target languages.",
    show_default="the model's; for files of translations, en")]
TestRecipe = Annotated[Path | None, typer.Option(
    "--recipe", metavar="RECIPE", help="Recipe with the test sets.",
    show_default="the recipe of the run")]
PairedTest = Annotated[Paired, typer.Option("--paired", help="Significance test.")]
Samples = Annotated[int | None, typer.Option(
    "--samples", metavar="N", min=1, help="Number of bootstrap samples or randomization trials.",
    show_default="1,000 samples or 10,000 trials")]
Device = Annotated[str, typer.Option(
    metavar="D", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one.", rich_help_panel=MACHINE)]
PrecisionOption = Annotated[Precision, typer.Option(
    help="Number format: fp32; int8 (CPU only); bf16 or fp16 (GPU only). reference: fp32 on a CPU; on a GPU, the first "
    "of bf16, fp16 and fp32 that it supports. auto: int8 on a CPU if the model allows it and loses at most 0.3 BLEU by "
    "it, as measured at the end of training; else reference.",
    rich_help_panel=MACHINE)]
ScoringPrecisionOption = Annotated[ScoringPrecision, typer.Option(
    "--precision", help="Number format: fp32; bf16 or fp16 (GPU only). reference: fp32 on a CPU; on a GPU, the first "
    "of bf16, fp16 and fp32 that it supports.", rich_help_panel=MACHINE)]
TrainingDevice = Annotated[str | None, typer.Option(
    "--device", metavar="D", help="cpu, cuda, cuda:1, …; auto uses a GPU if there is one. Short for --set "
    "training.device=D.", show_default="the recipe's", rich_help_panel=MACHINE)]
TrainingPrecisionOption = Annotated[TrainingPrecision | None, typer.Option(
    "--precision", help="Number format; auto is the first of bf16, fp16 and fp32 that the hardware supports. Short "
    "for --set training.precision=….", show_default="the recipe's", rich_help_panel=MACHINE)]
TrainingThreads = Annotated[int | None, typer.Option(
    "--threads", metavar="N", min=1, max=1024, help="Number of CPU threads. Short for --set training.threads=N.",
    show_default="the recipe's, else one per core", rich_help_panel=MACHINE)]
Workers = Annotated[int, typer.Option(
    metavar="N", min=1, max=1024, help="Number of workers that translate in parallel. Each worker uses one thread, or "
    "the number in --threads. Several workers are faster than one worker with many threads. In int8, and in fp32 on "
    "a CPU, the workers share one copy of most models; otherwise each worker is a process with its own copy.",
    rich_help_panel=MACHINE)]
TargetLanguage = Annotated[str | None, typer.Option(
    metavar="CODE", help="Language to translate into, if the model has several target languages.",
    show_default="the recipe's")]
SourceLanguage = Annotated[str | None, typer.Option(
    metavar="CODE", help="Language to translate from, if the model has several source languages.",
    show_default="the recipe's")]
LineTag = Annotated[str | None, typer.Option(
    "--tag", metavar="TAG", help="Tag of all lines: one of those in data.train of the model's recipe, such as '<law>'.",
    show_default="that with which a line begins")]
Threads = Annotated[int | None, typer.Option(
    metavar="N", min=1, max=1024, help="Number of CPU threads.", show_default="one per core", rich_help_panel=MACHINE)]
