"""The `data` section of a recipe: corpora and their cleaning."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, field_validator, model_validator

from seq2seq.recipe.section import MistakeAt, Section
from seq2seq.unpacking import LONGEST_LINE, PACKED

# No dot: `--set data.test.NAME.limit=5` has to know where the name ends.
TestName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]

TABLE_FORMATS = (".tsv", ".csv", ".jsonl", ".parquet", ".tmx")
OF_COLUMNS = (".tsv", ".csv")
"""Formats whose columns have numbers, or names in their first line."""


def _text_or_column(value: Any) -> Any:
    """Refuse what is neither text nor a column number in one message; pydantic has one for each type of a union."""
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

    A model can make one of the sides: `{target: mono.en, translated_by: runs/en_de}` is back-translation,
    `{source: train.de, translated_by: runs/teacher}` distillation.
    """

    source: PathOrColumn = None
    """The file of source sentences, one a line (may end in .gz or .zst); with `file` or `hub`, the column that holds
    them, or of a .tmx their language."""
    target: PathOrColumn = None
    """The file of target sentences, line by line the translations; with `file` or `hub`, the column."""
    text: PathOrColumn = None
    """Instead of `source` and `target`, for a language model: the file of sentences, or the column that holds them."""
    file: str | None = None
    """One file of pairs: .tsv, .csv (RFC 4180: commas, and double quotes around text with commas), .jsonl, a
    translation memory .tmx (each may end in .gz or .zst as well) or .parquet. Without `source` and `target`, the first
    two columns of a .tsv or .csv, or the recipe's languages in a .tmx."""
    header: bool = False
    """The first line of a .tsv or .csv names its columns; without it, columns are numbers from 1."""
    markup: bool = False
    """Keep the codes of the format that the text of a .tmx came from, such as `<b>`; otherwise they are left out."""
    hub: str | None = None
    """A data set of the Hugging Face hub. `source` and `target` are columns, or keys of its `translation` column."""
    config: str | None = None
    """Which configuration of the `hub` data set."""
    split: str | None = None
    """Which split of the `hub` data set."""
    streaming: bool = False
    """Read the `hub` data set as it arrives, without keeping a copy: for one larger than the disk."""
    translated_by: str | None = None
    """In training: a model (a run or a bundle, relative to the recipe file) that translates the side that is given,
    `target` or `source`, into the one that is not."""
    sampling: bool | None = None
    """With `translated_by`: draw translations instead of searching for the best. Not set: sources are drawn, targets
    are searched for."""
    tag: str | None = None
    """Written before each source, so that the model can tell this corpus from others: `<BT>` for back-translated text
    (Caswell et al. 2019)."""
    name: str | None = None
    """What reports call this corpus. Otherwise they name its source."""
    weight: PositiveFloat = 1.0
    """How often each pair is seen in an epoch. 2 shows it twice, 0.5 shows a half of the pairs, another each epoch."""
    limit: PositiveInt | None = None
    """Read no more than this many pairs, from the first."""
    max_line_bytes: PositiveInt = LONGEST_LINE
    """Refuse text with a longer line, or a .tmx with a longer segment: it lacks line ends, or is a small packed file
    that would fill the memory."""

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
        by_number = self.table_format in OF_COLUMNS and not self.header
        if by_number and any(isinstance(column, str) for column in self.columns):
            raise ValueError(f"a {self.table_format} without `header: true` has numbered columns, such as `source: 1, "
                             "target: 2`")
        if not by_number and not named:
            raise ValueError("`source` and `target` must name the columns" if self.text is None
                             else "`text` must name the column")
        return self

    @property
    def sides(self) -> tuple[str, ...]:
        """The keys of its texts: source and target, or text."""
        return ("source", "target") if self.text is None else ("text",)

    def tagged(self, source: str) -> str:
        """A source as the model sees it."""
        return f"{self.tag} {source}" if self.tag else source

    @property
    def untagged(self) -> "Corpus":
        """The same text as it lies, for whoever judges it: an empty source would not be empty with a tag."""
        return self.model_copy(update={"tag": None})

    @property
    def in_recipes_languages(self) -> bool:
        """Whether it is a translation memory that does not say which of its languages are meant."""
        return self.table_format == ".tmx" and self.source is None and self.text is None

    @property
    def form(self) -> Literal["files", "table", "hub"]:
        """Which of the three forms this corpus has."""
        return "hub" if self.hub is not None else "table" if self.file is not None else "files"

    @property
    def table_format(self) -> str | None:
        """Its ending, one of `TABLE_FORMATS`, for a corpus with `file`; None for other forms and other endings."""
        name = self.file or ""
        suffix = Path(name).suffix
        if suffix in PACKED:
            suffix = Path(name).with_suffix("").suffix
            return suffix if suffix in TABLE_FORMATS and suffix != ".parquet" else None
        return suffix if suffix in TABLE_FORMATS else None

    @property
    def columns(self) -> tuple[str | int, ...]:
        """Where each of `sides` is: a column, or a file in a corpus of files."""
        if self.text is not None:
            return (self.text,)
        if self.translated_by is not None:
            return tuple(side for side in (self.source, self.target) if side is not None)
        return (1 if self.source is None else self.source, 2 if self.target is None else self.target)

    @property
    def samples(self) -> bool:
        """Of a corpus with `translated_by`: whether its translations are drawn."""
        return self.source is None if self.sampling is None else self.sampling

    @property
    def label(self) -> str:
        """What reports call this corpus."""
        if self.name is not None:
            return self.name
        if self.form == "hub":
            return " ".join(str(part) for part in (self.hub, self.config, self.split) if part is not None)
        return str(self.file if self.form == "table" else self.columns[0])

    @property
    def paths(self) -> list[Path]:
        """The files that the corpus is read from, as they are written."""
        return [Path(str(getattr(self, key))) for key in self._path_keys()]

    def resolve(self, directory: Path, recipe_directory: Path | None = None) -> "Corpus":
        """The same corpus with absolute paths, which were relative to `directory`; that of a model, to the recipe's."""
        paths = {key: os.path.abspath(directory / getattr(self, key)) for key in self._path_keys()}
        if self.translated_by is not None:
            paths["translated_by"] = os.path.abspath((recipe_directory or directory) / self.translated_by)
        return self.model_copy(update=paths)

    def _path_keys(self) -> tuple[str, ...]:
        given = tuple(side for side in self.sides if getattr(self, side) is not None)
        return {"files": given, "table": ("file",), "hub": ()}[self.form]


class Cleaning(Section):
    """Which training pairs are left out; each is counted with its reason. Pairs with an empty side always are."""

    max_characters: PositiveInt = 5000
    """Drop pairs with a side longer than this. Keeps wreckage of web pages away from the tokenizer."""
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
    """Drop pairs in which a smaller share of the numbers in digits, of the side with more, has a counterpart on the
    other side: digits, Chinese or Japanese numerals, English or German number words. The cheapest sign of a wrong pair
    in text from the web; 0.7 is a good value. Not set: none are dropped, for number words of other languages are not
    known."""
    max_length_deviation: PositiveFloat | None = None
    """Drop pairs whose lengths lie more standard deviations apart than this from what is usual in the corpus (Gale and
    Church 1993), learned from its first 10,000 pairs, which should be like the rest. 3 suits text from the web, 4
    costs fewer good pairs. Not set: none are dropped."""
    language: Literal["any", "sides", "lingua"] = "any"
    """Drop pairs with a side in a wrong language. `sides` learns from the first 10,000 pairs what both sides look like
    and drops text that looks like the other side; `lingua` knows 75 languages and takes some
    10 ms a pair (`pip install lingua-language-detector`)."""


class Data(Section):
    """Parallel text to train on, to validate with and to test with."""

    root: str = "."
    """Directory that the paths of the corpora start from; itself relative to the recipe file."""
    train: Annotated[tuple[Corpus, ...], Field(strict=False, min_length=1)]
    """List of training corpora."""
    temperature: Annotated[float, Field(ge=1)] = 1.0
    """How much more often small training corpora are seen: each is drawn as often as its size (times its weight) to
    the power of 1 / temperature says (Arivazhagan et al. 2019). 1 takes them as large as they are."""
    valid: Corpus
    """Corpus that decides during training which model is best."""
    test: dict[TestName, Corpus] = {}
    """Test corpora by name. The finished model is measured on each."""
    cleaning: Cleaning = Cleaning()
    """Which training pairs are left out."""

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
        """All corpora, train, valid and test, each with the steps of its key below `data`."""
        yield from ((("train", number), corpus) for number, corpus in enumerate(self.train))
        yield ("valid",), self.valid
        yield from ((("test", name), corpus) for name, corpus in self.test.items())

    def corpora(self) -> Iterator[Corpus]:
        """All corpora: train, valid, test."""
        yield from (corpus for _, corpus in self.keyed_corpora())
