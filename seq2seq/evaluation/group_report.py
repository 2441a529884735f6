"""Report about groups of systems, each a recipe trained with several seeds: as text, as Markdown and as a page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from seq2seq.errors import CheckpointError
from seq2seq.evaluation.learning_curves import Records, compared_curves
from seq2seq.evaluation.pages import filled_page, page_table
from seq2seq.evaluation.recipe_tests import TestSet
from seq2seq.evaluation.scores import METRICS, TITLES, sacrebleu_metric, warn_if_without_spaces
from seq2seq.evaluation.seeds import GroupScore, compare_groups
from seq2seq.evaluation.significance import signed
from seq2seq.evaluation.system_comparison import Translated, text_lines
from seq2seq.recipe.recipe_differences import settings_that_differ
from seq2seq.storage.checkpoints import recipe_of_training, resolve_model_path, run_of
from seq2seq.storage.run_directory import LOG_FILE, log_records

EXPLANATION = ("BLEU and chrF: higher is better; TER: lower is better. A difference is the mean of a system minus that "
               "of the first. p is the probability of a difference of this size between systems that are equally good, "
               "over the choice of sentences and the chance of training; below 0.05, it is called significant (Welch's "
               "test over seeds, with the variance of resampled test sets).")


@dataclass(frozen=True)
class Table:
    """Table of a report. notes: sentences below it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class GroupReport:
    """Comparison of groups of systems.

    Attributes:
        groups: systems of each group, by seed, by the name of the group.
        scores: by test set, metric and group.
        signatures: sacreBLEU's signature of each metric, by test set.
        lengths: characters of the translations divided by those of the references, by test set and group.
        logs: records of the training log of each run, by group; a bundle or a file has none.
        systems: what the groups are: settings that differ, number formats, training text and paths.
    """

    groups: Mapping[str, Mapping[int, Translated]]
    scores: Mapping[str, Mapping[str, Mapping[str, GroupScore]]]
    signatures: Mapping[str, Mapping[str, str]]
    lengths: Mapping[str, Mapping[str, float]]
    logs: Mapping[str, Sequence[Records]]
    systems: Table

    def tables(self) -> list[Table]:
        """Return a table for each test set and metric, one with length, time and memory, and that of the systems."""
        found = [self._scores(test, metric) for test, by_metric in self.scores.items() for metric in by_metric]
        head = ["system", *(f"{test}: length / reference" for test in self.lengths), "minutes of training",
                "peak memory (GB)"]
        rows = [[name, *(f"{by_group[name]:.3f}" for by_group in self.lengths.values()),
                 self._highest(name, "seconds", 60), self._highest(name, "peak_memory", 1e9)] for name in self.groups]
        if found:
            found[-1] = replace(found[-1], notes=[*found[-1].notes, EXPLANATION])
        return [*found, Table("Length, time and memory", head, rows), self.systems]

    def _highest(self, group: str, key: str, unit: float) -> str:
        """Return the highest value of a key in the log of each of a group's trainings, in some unit: the mean of them.
        """
        values = [max((record[key] for record in log if key in record), default=None) for log in self.logs[group]]
        known = [value for value in values if value is not None]
        return f"{mean(known) / unit:.2f}" if known else ""

    def _scores(self, test: str, metric: str) -> Table:
        by_group = self.scores[test][metric]
        first, rows, notes = next(iter(by_group)), [], []
        for name, score in by_group.items():
            values = ", ".join(f"{value:.2f}" for value in score.values)
            row = [name, f"{score.mean:.2f}", "" if score.deviation is None else f"{score.deviation:.2f}", values]
            if score.difference is not None:
                row += [f"{signed(score.difference)} ± {score.interval:.2f}",
                        "too few lines differ" if score.p_value is None else
                        f"{score.p_value:.3f}" if score.p_value >= 5e-4 else "< 0.001"]
                notes += self._notes(test, metric, name)
            rows.append([*row, *[""] * (6 - len(row))])
        head = ["system", "mean", "deviation", "of each seed", f"difference from {first} (95 %)", "p"]
        return Table(f"{TITLES[metric]} on {test}  {self.signatures[test][metric]}", head, rows, notes)

    def _notes(self, test: str, metric: str, name: str) -> list[str]:
        """Return sentences about the difference of a group: seeds that alone would have said otherwise."""
        by_group = self.scores[test][metric]
        first, score = next(iter(by_group)), by_group[name]
        if min(len(score.values), len(by_group[first].values)) == 1:
            return [f"{name}: with a single seed, p covers the choice of sentences, and not the chance of training."]
        few = [] if min(len(score.values), len(by_group[first].values)) > 2 else [
            f"{name}: two seeds tell little about the chance of training, and the interval is wide. Train three."]
        if not score.otherwise:
            return few
        mine, others = list(self.groups[name]), list(self.groups[first])
        pairs = [f"{mine[index]} against {others[index]}" if mine[index] != others[index] else str(mine[index])
                 for index in score.otherwise]
        verdict = (f"{'better' if (score.mean > by_group[first].mean) == (metric != 'ter') else 'worse'} than {first}"
                   if score.significant else f"not significantly different from {first}")
        seeds = f"each of the seeds {' and '.join(pairs)}" if len(pairs) > 1 else f"seed {pairs[0]}"
        return [*few, f"{name} is {verdict} over all seeds; {seeds} alone would have said otherwise."]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, not rounded."""
        return {test: {metric: {name: {"systems": [str(system.path) for system in self.groups[name].values()],
                                       "seeds": [seed for seed, system in self.groups[name].items()
                                                 if system.precision], **asdict(score), "mean": score.mean,
                                       "significant": score.significant} for name, score in by_group.items()}
                       for metric, by_group in by_metric.items()} | {"length": dict(self.lengths[test])}
                for test, by_metric in self.scores.items()}

    def text(self) -> str:
        """Return the tables as text."""
        return "\n\n".join(_as_text(table) for table in self.tables())

    def _tables_as_html(self) -> str:
        return "\n".join(f"<section><h2>{html.escape(table.title)}</h2>{page_table(table.head, table.rows)}"
                         + "".join(f'<p class="note">{html.escape(note)}</p>' for note in table.notes) + "</section>"
                         for table in self.tables())

    def markdown(self) -> str:
        """Return the tables as Markdown."""
        return "\n".join(_as_markdown(table) for table in self.tables())

    def page(self) -> str:
        """Return the tables and the learning curves as an HTML page that loads nothing from the network."""
        parts = [self._tables_as_html()]
        if any(self.logs.values()):
            path = next(system.path for name, systems in self.groups.items() for system in systems.values()
                        if self.logs[name])
            section = recipe_of_training(resolve_model_path(path)).training
            picture = compared_curves({name: logs for name, logs in self.logs.items() if logs}, "Learning curves",
                                      section.best_metric, section.label_smoothing > 0)
            parts.append(f"<section><h2>Learning curves</h2><figure>{picture}</figure></section>")
        return filled_page("group_report.html", title=html.escape(" against ".join(self.groups)),
                           body="\n".join(parts))


def report_groups(groups: Mapping[str, Mapping[int, Translated]], tests: Sequence[TestSet],
                  metrics: Sequence[str] = METRICS, samples: int = 0) -> GroupReport:
    """Compare the first group of systems with each of the others on all test sets. See `compare_groups`."""
    scores: dict[str, dict[str, dict[str, GroupScore]]] = {}
    signatures, lengths = {}, {}
    for one in tests:
        language = one.languages[1]
        if "bleu" in metrics:
            warn_if_without_spaces(one.name, one.references, language)
        translations = {name: [system.by_test[one.name] for system in systems.values()]
                        for name, systems in groups.items()}
        scores[one.name] = {metric: compare_groups(translations, one.streams, language, metric, samples)
                            for metric in metrics}
        signatures[one.name] = {metric: _signature(metric, language, one.streams) for metric in metrics}
        characters = sum(map(len, one.references)) or 1
        lengths[one.name] = {name: mean(sum(map(len, lines)) / characters for lines in systems)
                             for name, systems in translations.items()}
    return GroupReport(groups, scores, signatures, lengths,
                       {name: [log for system in systems.values() if (log := _log(system.path))]
                        for name, systems in groups.items()}, _systems(groups))


def _systems(groups: Mapping[str, Mapping[int, Translated]]) -> Table:
    """Return the table of what the groups are. A file of translations has only its path."""
    bundles = {name: resolve_model_path(path) for name, systems in groups.items()
               if (path := next(iter(systems.values())).path).is_dir()}

    def row(title: str, values: Mapping[str, str]) -> list[str]:
        return [title, *(values.get(name, "") for name in groups)]

    precisions = {name: ", ".join(dict.fromkeys(one.precision or "" for one in systems.values()))
                  for name, systems in groups.items()}
    lines = {name: " + ".join(f"{count:,}" for count in text_lines(bundle)) for name, bundle in bundles.items()}
    changed = settings_that_differ([recipe_of_training(bundle) for bundle in bundles.values()])
    paths = [f"{name}: {', '.join(str(one.path) for one in systems.values())}"
             for name, systems in groups.items() if [name] != [str(one.path) for one in systems.values()]]
    return Table("Systems and the settings that differ", ["setting", *groups], [
        row("precision", precisions), row("training pairs", lines),
        *(row(key, dict(zip(bundles, values, strict=True))) for key, *values in changed if key != "seed")], paths)


def _signature(metric: str, language: str, references: Sequence[Sequence[str]]) -> str:
    scorer: Any = sacrebleu_metric(metric, language)
    scorer.corpus_score(references[0], references)                              # the number of references
    return str(scorer.get_signature())


def _log(path: Path) -> Records:
    """Return the records of the training log of a run; of a bundle elsewhere, or of a file, none."""
    run = run_of(resolve_model_path(path)) if path.is_dir() else None
    try:
        return [] if run is None else [record for _, record in log_records(run / LOG_FILE)]
    except CheckpointError:
        return []


def _as_text(table: Table) -> str:
    rows = [table.head, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}"
                       for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]
    return "\n".join([table.title, *(f"  {line}" for line in lines), *(f"  {note}" for note in table.notes)])


def _as_markdown(table: Table) -> str:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rule = f"|{'---|' * len(table.head)}"
    notes = [line for note in table.notes for line in ("", note)]
    return "\n".join([f"**{table.title.replace('|', chr(92) + '|')}**", "", row(table.head), rule,
                      *map(row, table.rows), *notes, ""])
