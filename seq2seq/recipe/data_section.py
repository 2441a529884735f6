"""The `data` section of a recipe: corpora and their cleaning."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, field_validator, model_validator

from seq2seq.compressed_files import COMPRESSED_SUFFIXES, MAX_LINE_BYTES
from seq2seq.recipe.base_section import MistakeAt, Section

# No dot: `--set data.test.NAME.limit=5` has to know where the name ends.
TestName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]

TABLE_FORMATS = (".tsv", ".csv", ".jsonl", ".parquet", ".tmx")
OF_COLUMNS = (".tsv", ".csv")
"""Formats whose columns are numbered, or named in the first line."""


def _text_or_column(value: Any) -> Any:
    """Return text or a column number; refuse anything else with one message, where pydantic has one per type."""
    if value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        if isinstance(value, int) and value < 1:
            raise ValueError(f"columns count from 1, found {value}")
        return value
    raise ValueError("expected a path, the name of a column or the number of a column")


PathOrColumn = Annotated[str | int | None, BeforeValidator(_text_or_column)]


class Corpus(Section):
    """Parallel text in one of three forms: two text files, one table, or a data set of the Hugging Face hub.

    `{source: train.de, target: train.en}`, `{file: pairs.tsv}`, or
    `{hub: wmt/wmt14, config: de-en, split: train, source: de, target: en}`.

    A language model reads text of one language, in the same forms: `{text: train.en}`, `{file: pairs.tsv, text: 2}`, or
    `{hub: wmt/wmt14, config: de-en, split: train, text: en}`.

    A model can translate one side into the other: `{target: mono.en, translated_by: runs/en_de}` is back-translation,
    `{source: train.de, translated_by: runs/teacher}` is knowledge distillation.
    """

    source: PathOrColumn = None
    """File of source sentences, one per line (may end in .gz or .zst); with `file` or `hub`, their column, or in a .tmx
    their language."""
    target: PathOrColumn = None
    """File of target sentences, the translations line by line; with `file` or `hub`, their column."""
    text: PathOrColumn = None
    """For a language model, instead of `source` and `target`: file of sentences, or their column."""
    file: str | None = None
    """One file of pairs: .tsv, .csv (RFC 4180: commas, and double quotes around text with commas), .jsonl, a
    translation memory .tmx (each may end in .gz or .zst as well) or .parquet. Without `source` and `target`, the first
    two columns of a .tsv or .csv, or the recipe's languages in a .tmx."""
    header: bool = False
    """The first line of a .tsv or .csv contains the names of its columns; otherwise columns are numbered from 1."""
    markup: bool = False
    """Keep inline markup in the text of a .tmx, such as `<b>`; otherwise it is removed."""
    hub: str | None = None
    """Data set of the Hugging Face hub. `source` and `target` are columns, or keys of its `translation` column."""
    config: str | None = None
    """Configuration of the `hub` data set."""
    split: str | None = None
    """Split of the `hub` data set."""
    streaming: bool = False
    """Stream the `hub` data set instead of saving a copy, for one larger than the disk."""
    translated_by: str | None = None
    """For a training corpus with only `target` or only `source`: the model (a run or a bundle, relative to the recipe
    file) that translates it into the other side."""
    sampling: bool | None = None
    """With `translated_by`: sample the translations instead of searching for the best. Not set: synthetic sources are
    sampled, synthetic targets are searched for."""
    tag: str | None = None
    """Text to put before each source, so that the model can tell this corpus from others: `<BT>` for back-translated
    text (Caswell et al. 2019)."""
    name: str | None = None
    """Name of the corpus in reports. Not set: its source."""
    weight: PositiveFloat = 1.0
    """Number of times that each pair is seen in an epoch. 2 shows it twice; 0.5 shows half of the pairs, drawn anew in
    each epoch."""
    limit: PositiveInt | None = None
    """Read at most this many pairs, from the first."""
    max_line_bytes: PositiveInt = MAX_LINE_BYTES
    """Refuse text with a longer line, or a .tmx with a longer segment: it lacks line ends, or is a small compressed
    file that would fill the memory."""

    @model_validator(mode="after")
    def _exactly_one_form(self) -> "Corpus":
        if self.text is not None and (self.source is not None or self.target is not None):
            raise ValueError("a corpus has `source` and `target`, or `text` alone, not both")
        if self.file is not None and self.hub is not None:
            raise ValueError("a corpus has `file` or `hub`, not both")
        if self.hub is None and (self.config is not None or self.split is not None or self.streaming):
            raise ValueError("`config`, `split` and `streaming` belong to a corpus with `hub`")
        if self.markup and self.table_format != ".tmx":
            raise ValueError("`markup: true` belongs to a corpus with a .tmx `file`")
        if self.sampling is not None and self.translated_by is None:
            raise ValueError("`sampling` belongs to a corpus with `translated_by`")
        if self.tag is not None and (self.text is not None or not self.tag.strip()):
            raise ValueError("a `tag` is some text before the sources of a corpus")
        if self.translated_by is not None:
            given = [text for text in (self.source, self.target) if text is not None]
            if self.form != "files" or len(given) != 1 or not isinstance(given[0], str):
                raise ValueError("`translated_by` needs one file, `source` or `target`, and makes the other")
            return self
        named = all(isinstance(getattr(self, side), str) for side in self.sides)
        if self.header and self.table_format not in OF_COLUMNS:
            raise ValueError("`header: true` belongs to a corpus with a .tsv or .csv `file`")
        if self.form == "files":
            if not named:
                needed = "`source` and `target` (two files)" if self.text is None else "a file of `text`"
                alone = self.target is not None and self.source is None
                raise ValueError(f"a corpus needs {needed}, or `file`, or `hub`"
                                 f"{'; that of a language model, `text`' if alone else ''}")
            return self
        if self.form == "table" and self.table_format is None:
            raise MistakeAt(
                "file",
                "expected a name that ends in .tsv, .csv, .jsonl or .tmx (and .gz or .zst), or in .parquet, found "
                f"'{self.file}'",
            )
        if self.form == "hub" and self.split is None:
            raise ValueError("`hub` needs `split`, such as `split: train`")
        if (self.source is None) != (self.target is None):
            raise ValueError("give both columns, `source` and `target`, or neither")
        if self.in_recipes_languages:
            return self
        by_number = self.has_numbered_columns
        if by_number and any(isinstance(column, str) for column in self.columns):
            raise ValueError(f"a {self.table_format} without `header: true` has numbered columns, such as `source: 1, "
                             "target: 2`")
        if not by_number and not named:
            raise ValueError("`source` and `target` must name the columns" if self.text is None
                             else "`text` must name the column")
        return self

    @property
    def sides(self) -> tuple[str, ...]:
        """Keys that hold its texts: source and target, or text."""
        return ("source", "target") if self.text is None else ("text",)

    def tagged(self, source: str) -> str:
        """Return the source sentence as the model reads it, with the tag before it."""
        return f"{self.tag} {source}" if self.tag else source

    @property
    def untagged(self) -> "Corpus":
        """Return the corpus without its tag, for code that judges the text: with a tag no source is empty."""
        return self.model_copy(update={"tag": None})

    @property
    def in_recipes_languages(self) -> bool:
        """True for a translation memory without `source` and `target`: the recipe's languages are read from it."""
        return self.table_format == ".tmx" and self.source is None and self.text is None

    @property
    def has_numbered_columns(self) -> bool:
        """True of a table whose columns have numbers, not names."""
        return self.table_format in OF_COLUMNS and not self.header

    @property
    def form(self) -> Literal["files", "table", "hub"]:
        """Form of the corpus, one of three."""
        return "hub" if self.hub is not None else "table" if self.file is not None else "files"

    @property
    def table_format(self) -> str | None:
        """Suffix of `file`, one of `TABLE_FORMATS`; None for other forms and other suffixes."""
        name = self.file or ""
        suffix = Path(name).suffix
        if suffix in COMPRESSED_SUFFIXES:
            suffix = Path(name).with_suffix("").suffix
            return suffix if suffix in TABLE_FORMATS and suffix != ".parquet" else None
        return suffix if suffix in TABLE_FORMATS else None

    @property
    def columns(self) -> tuple[str | int, ...]:
        """Column of each of `sides`, or its file in a corpus of files."""
        if self.text is not None:
            return (self.text,)
        if self.translated_by is not None:
            return tuple(side for side in (self.source, self.target) if side is not None)
        return (1 if self.source is None else self.source, 2 if self.target is None else self.target)

    @property
    def samples(self) -> bool:
        """True if the translations of a corpus with `translated_by` are sampled."""
        return self.source is None if self.sampling is None else self.sampling

    @property
    def label(self) -> str:
        """Name of the corpus in reports."""
        if self.name is not None:
            return self.name
        if self.form == "hub":
            return " ".join(str(part) for part in (self.hub, self.config, self.split) if part is not None)
        return str(self.file if self.form == "table" else self.columns[0])

    @property
    def paths(self) -> list[Path]:
        """Files of the corpus, as written in the recipe."""
        return [Path(str(getattr(self, key))) for key in self._path_keys()]

    def resolve(self, directory: Path, recipe_directory: Path | None = None) -> "Corpus":
        """Return a copy with absolute paths.

        directory: that the files are relative to. recipe_directory: that `translated_by` is relative to.
        """
        paths = {key: os.path.abspath(directory / getattr(self, key)) for key in self._path_keys()}
        if self.translated_by is not None:
            paths["translated_by"] = os.path.abspath((recipe_directory or directory) / self.translated_by)
        return self.model_copy(update=paths)

    def _path_keys(self) -> tuple[str, ...]:
        given = tuple(side for side in self.sides if getattr(self, side) is not None)
        return {"files": given, "table": ("file",), "hub": ()}[self.form]


class Cleaning(Section):
    """Filters that drop training pairs; the log counts the pairs by reason. Pairs with an empty side are always
    dropped."""

    max_characters: PositiveInt = 5000
    """Drop pairs with a side longer than this. Keeps debris of web pages away from the tokenizer."""
    max_pieces: PositiveInt = 256
    """Drop pairs with a side of more subword pieces than this."""
    max_length_ratio: Annotated[float, Field(gt=1)] | None = None
    """Drop pairs in which one side has more than this many times the characters of the other, if both sides have more
    than 10. Not set: none are dropped."""
    remove_identical: bool = False
    """Drop pairs whose two sides are the same text."""
    remove_duplicates: bool = False
    """Keep only the first of equal pairs."""
    remove_damaged: bool = False
    """Drop pairs with U+FFFD, control characters, or text read in a wrong encoding (`Ã¤` for `ä`)."""
    min_number_agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    """Drop pairs in which a smaller share of the numbers has a counterpart on the other side. Counted are the numbers
    in digits of the side that has more; a counterpart may be in digits, Chinese or Japanese numerals, English or German
    number words. The cheapest sign of a wrong pair in text from the web; 0.7 is a good value. Not set: none are
    dropped, because number words of other languages are not known."""
    max_length_deviation: PositiveFloat | None = None
    """Drop pairs whose target is more than this many standard deviations longer or shorter than expected for its source
    (Gale and Church 1993). The expectation is learned from the first 10,000 pairs, which should be like the rest. 3
    suits text from the web, 4 costs fewer good pairs. Not set: none are dropped."""
    language: Literal["any", "sides", "lingua"] = "any"
    """Drop pairs with a side in a wrong language. `sides` learns from the first 10,000 pairs what each side looks like
    and drops text that looks like the other side; `lingua` knows 75 languages and takes about 10 ms per pair
    (`pip install lingua-language-detector`)."""


class Data(Section):
    """Parallel text to train on, to validate with and to test with."""

    root: str = "."
    """Directory that the paths of the corpora are relative to; itself relative to the recipe file."""
    train: Annotated[tuple[Corpus, ...], Field(strict=False, min_length=1)]
    """List of training corpora."""
    temperature: Annotated[float, Field(ge=1)] = 1.0
    """Temperature that oversamples small training corpora: each is sampled in proportion to its size (times its weight)
    to the power of 1 / temperature (Arivazhagan et al. 2019). 1 keeps the natural proportions."""
    valid: Corpus
    """Validation corpus, which selects the best model during training."""
    test: dict[TestName, Corpus] = {}
    """Test corpora by name. The finished model is evaluated on each."""
    cleaning: Cleaning = Cleaning()
    """Filters that drop training pairs; the log counts the pairs by reason. Pairs with an empty side are always
    dropped."""

    @field_validator("valid", "test")
    @classmethod
    def _weight_is_for_training(cls, value: Corpus | dict[str, Corpus]) -> Corpus | dict[str, Corpus]:
        for name, corpus in value.items() if isinstance(value, dict) else [("", value)]:
            if corpus.weight != 1.0:
                raise MistakeAt(f"{name}.weight".strip("."), "only training corpora have a weight")
            if corpus.translated_by is not None:
                raise MistakeAt(f"{name}.translated_by".strip("."), "only training corpora are translated by a model")
        return value

    def keyed_corpora(self) -> Iterator[tuple[tuple[str | int, ...], Corpus]]:
        """Yield all corpora (train, valid, test), each after its key below `data`."""
        yield from ((("train", number), corpus) for number, corpus in enumerate(self.train))
        yield ("valid",), self.valid
        yield from ((("test", name), corpus) for name, corpus in self.test.items())

    def corpora(self) -> Iterator[Corpus]:
        """Yield all corpora: train, valid, test."""
        yield from (corpus for _, corpus in self.keyed_corpora())
