"""Output of the report of `check` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from seq2seq.check.results import PERCENTILES, CorpusReport, Finding, RecipeCost, Report
from seq2seq.console import escape_control_characters, print_text

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 100_000
"""Width of a report that goes to a file or pipe: no line is broken."""


def column_widths(columns: Sequence[Sequence[str]], available: int) -> list[int]:
    """Return the widths of a table's columns. No word is broken, even if the table is too wide then. Columns that lack
    most get what is left of the available width.

    columns: the cells of each column. available: width for all columns together.
    """
    from rich.cells import cell_len

    lines = [[line for cell in column for line in cell.split("\n")] for column in columns]
    wanted = [max(map(cell_len, column)) for column in lines]
    widths = [max(cell_len(word) for line in column for word in line.split(" ")) for column in lines]
    while sum(widths) < min(available, sum(wanted)):
        widths[max(range(len(widths)), key=lambda column: wanted[column] - widths[column])] += 1
    return widths


def show_costs(costs: Sequence[RecipeCost]) -> None:
    """Print the report of the first recipe, and the cost of all."""
    out = _console()
    show_report(costs[0].report)
    rows = [[cost.name, f"{cost.pairs:,}", f"{cost.steps:,}", _duration(cost.steps_hours), f"{cost.sentences:,}",
             _duration(cost.sentences_hours), _duration(cost.hours),
             "–" if cost.peak_bytes is None else _size(cost.peak_bytes)] for cost in costs]
    known = [cost.hours for cost in costs if cost.hours is not None]
    rows.append(["all", *[""] * 5, _duration(sum(known) if len(known) == len(costs) else None), ""])
    _print_table(out, "Recipes in the order of training", [
        "recipe", "pairs", "steps", "time", "translated\nsentences", "time", "all\ntime", "peak\nmemory"], rows)


def show_report(report: Report) -> None:
    """Print the report as text on standard output."""
    out = _console()
    print_table = partial(_print_table, out)
    read = [corpus for corpus in report.corpora if not corpus.error]
    print_table(f"Corpora of {report.name}: percentiles of line lengths (100 is the longest line)",
                ["corpus", "side", "pairs", "characters\n50", "95", "99", "100", "words\n50", "95", "99", "100"],
                [row for corpus in read for row in _length_rows(corpus)], left=2)
    training = [corpus for corpus in read if corpus.role == "train"]
    dropped = [[corpus.label, reason, f"{count:,}", f"{corpus.counts.examples[reason]:,}"]
               for corpus in training for reason, count in corpus.counts.dropped.items() if count]
    if dropped:
        print_table("Pairs that cleaning drops from train", ["corpus", "reason", "pairs", "example line"], dropped,
                    left=2)
    else:
        out.print("Cleaning drops nothing from train.")
    findings = [[f"{corpus.role} {corpus.label}", kind.replace("_", " "), f"{finding.count:,}",
                 f"{checked:,}", f"{finding.count / checked:.2%}", ", ".join(map(str, finding.lines))]
                for corpus in read for kind, finding, checked in _findings(corpus) if finding.count]
    if findings:
        columns = ["corpus", "kind", "lines", "of", "share", "example lines"]
        print_table("Suspicious lines, before cleaning if nothing else is said", columns, findings, left=2)
    limits = [[corpus.label, key, ", ".join(f"{value}: {count:,}" for value, count in values.items())]
              for corpus in training for key, values in corpus.limits.items() if any(values.values())]
    if limits:
        print_table("Pairs that each data.cleaning limit would drop alone", ["corpus", "key", "limit: pairs"], limits,
                    left=3)
    for corpus in read:
        if corpus.judgement and corpus.judgement.misaligned is None and not corpus.judgement.unrelated:
            print_text(f"{corpus.role} {corpus.label}: alignment was not checked. The check needs some 500 lines of "
                       "training text, whose pairs must score higher than random pairs.", console=out)
    for corpus in read:
        if corpus.counts.repairs():
            print_text(f"{corpus.role} {corpus.label}: {corpus.counts.summary()}", console=out)
    overlaps = [[f"{corpus.role} {corpus.label}", f"{kind}s", f"{shared.of:,}", f"{len(shared.lines):,}",
                 f"{shared.exact:,}", ", ".join(shared.examples[:1])]
                for corpus in read for kind, shared in corpus.in_train.items()]
    if training and overlaps:
        print_table("Held-out text that also occurs in train",
                    ["corpus", "kind", "lines", "in train", "exactly", "example"], overlaps, left=2)
    print_table("Cost", ["", ""], list(_cost(report)), left=2)
    for corpus in report.corpora:
        if corpus.error:
            print_text(f"not read: {corpus.role} {corpus.label}", "red", out)
    for warning in report.warnings:
        print_text(f"warning: {warning}", "yellow", out)
    if not report.warnings and not report.errors:
        out.print("No problems found.")


def _console() -> Console:
    from rich.console import Console

    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)


def _print_table(out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1
                 ) -> None:
    """Print a table. The first `left` columns are aligned to the left."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[escape_control_characters(cell) for cell in column] for column in zip(columns, *rows, strict=True)]
    gap = 2 if sum(column_widths(cells, 0)) + 2 * len(columns) < out.width else 1
    widths = column_widths(cells, out.width - gap * len(columns) - 1)
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=any(columns),
                  padding=(0, gap - 1, 0, 0))
    for number, (column, width) in enumerate(zip(columns, widths, strict=True)):
        table.add_column(column, justify="left" if number < left else "right", width=width)
    for row in zip(*(column[1:] for column in cells), strict=True):
        table.add_row(*map(Text, row))                                          # brackets in a text are no markup
    Console(highlight=False, width=max(out.width, sum(widths) + gap * len(columns) + 1)).print(table)


def _findings(corpus: CorpusReport) -> Iterator[tuple[str, Finding, int]]:
    """Yield (kind, finding, number of lines that were checked for this kind)."""
    for kind, finding in corpus.findings.items():
        yield kind, finding, corpus.lines
    if checks := corpus.judgement:
        after = ", after cleaning" if corpus.role == "train" else ""
        yield f"hardly_a_translation{after}", checks.suspects, checks.pairs
        for side, finding in checks.wrong_side.items():
            yield f"{side} like other side{after}", finding, checks.pairs
        for side, finding in checks.wrong_language.items():
            yield f"{side} in another language{after}", finding, checks.recognised


def _length_rows(corpus: CorpusReport) -> Iterator[list[str]]:
    for side, lengths in corpus.sides.items():
        numbers = [f"{values[percent]:,}" if values else "–" for values in (lengths.characters, lengths.words)
                   for percent in PERCENTILES]
        first = side == next(iter(corpus.sides))
        yield [f"{corpus.role} {corpus.label}" if first else "", side, f"{corpus.pairs:,}" if first else "",
               *numbers]


def _cost(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the estimated cost of a training as (name, text)."""
    vocabulary, model, training, machine = report.vocabulary, report.model, report.training, report.machine
    characters = ", ".join(f"{count:,} in {name}" for name, count in vocabulary["characters"].items())
    kind = "whole words" if vocabulary["type"] == "words" else f"subwords, {vocabulary['type']}"
    yield "vocabulary", f"{_vocabulary_sizes(vocabulary)} ({kind}); number of different characters: {characters}"
    for corpus in report.corpora:
        for side, lines in corpus.sides.items():
            if lines.characters_a_piece is not None and lines.unknown is not None:
                words = "" if lines.pieces_a_word is None else f"{lines.pieces_a_word:.2f} pieces per word, "
                yield "", (f"{corpus.role} {corpus.label}, {side}: {words}{lines.characters_a_piece:.2f} characters "
                           f"per piece; {lines.unknown:.3%} of the pieces are bytes or unknown")
    if not model:
        return
    yield "model", (f"{model['parameters']:,} parameters ({model['type']}), {model['of_embeddings']:,} of them in "
                    f"embeddings; a bundle takes {_size(model['bytes_of_bundle'])}")
    if memory := report.memory:
        parts = ", ".join(f"{name} {_size(part)}" for name, part in memory.items()
                          if name not in ("total", "free", "checkpoint"))
        unknown = "" if memory["activations"] else " (not known for this type of model)"
        copy = f"; {_size(memory['checkpoint'])} more for a checkpoint, if free" if memory["checkpoint"] else ""
        yield "memory", f"about {_size(memory['total'])} at the peak of the steps: {parts}{unknown}{copy}"
    if training:
        about = "" if report.tokens_are_exact else "about "
        sides = " and ".join(f"{training[key]:,} {side}" for side in ("source", "target", "text")
                             if (key := f"{side}_tokens") in training)
        yield "tokens", f"{about}{sides} tokens per epoch"
        yield "steps", (f"{about}{training['steps_per_epoch']:,} per epoch; {training['max_steps']:,} steps are "
                        f"{about}{training['epochs']:,.1f} epochs")
    if measured := report.measured:
        peak = "" if measured["peak_bytes"] is None else f"; peak memory {_size(measured['peak_bytes'])}"
        yield "time", (f"{_duration(measured['hours'])} without validation: {measured['seconds_a_step']:.3g} s per "
                       f"step (median of {measured['steps']}), {measured['tokens_a_second']:,.0f} tokens per second "
                       f"(all sides together){peak}")
    elif training:
        yield "time", "not measured"
    if estimated := report.estimated:
        yield "on GPUs", (f"{_duration(estimated['hours_on_one_h100'])} on one H100, "
                          f"{_duration(estimated['hours_on_eight_h100'])} on eight, without validation (estimated from "
                          f"{estimated['operations_a_step'] / 1e12:,.2g} TFLOP per step, not measured)")
    if report.disk:
        yield "disk", f"about {_size(report.disk['needed'])} needed, {_size(report.disk['free'])} free"
    yield "machine", f"{machine['device']} ({machine['processor']}), precision {machine['precision']}"


def _vocabulary_sizes(vocabulary: Mapping[str, Any]) -> str:
    source, target = vocabulary["source_vocab_size"], vocabulary["vocab_size"]
    if target == "auto":
        return "size not known until there is training text"
    chosen = ", size derived from the text" if vocabulary["chosen"] else ""
    if vocabulary["joint"]:
        return f"{target:,} pieces, joint{chosen}"
    return f"{source:,} source and {target:,} target pieces, one vocabulary for each language{chosen}"


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _duration(hours: float | None) -> str:
    if hours is None:
        return "–"
    return f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:,.1f} minutes"
