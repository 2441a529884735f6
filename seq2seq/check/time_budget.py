"""Fit of a new recipe to a time: size, steps, consistency training and validations, from measured steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from seq2seq.check.warnings import MIN_CONSISTENCY_EPOCHS

START_SECONDS = 6.0
"""Time from the command until the training reads its text: import of PyTorch and of other packages."""
VALIDATION_SHARE, TEST_SHARE = 0.15, 0.1
"""Maximum shares of the time for validations during the training, and for the test at its end."""
MAX_VALIDATIONS, MIN_VALIDATIONS, MIN_SENTENCES = 20, 3, 100
"""Numbers of validations, and minimum number of sentences that a validation or a test translates."""
LOSS_SHARE = 0.35
"""Time of the validation loss of some tokens, relative to a training step with them: a step also goes back."""
INT8_SHARE = 0.5
"""Time for the last translation of the validation sentences, in int8, relative to one in the training's precision."""
MIN_STEPS, MIN_EPOCHS = 1_000, 3
"""Minimum numbers of steps and of epochs for which a size is chosen. With fewer steps, the learning rate cannot rise
and fall slowly enough. After 4 epochs (900 steps), the small model had 33 of its 43 BLEU on Multi30k."""
MAX_DOUBLINGS = 20
"""Number of multiples of the time that `with_more_time` looks at, each twice the one before."""


@dataclass(frozen=True)
class Speed:
    """Measured times in seconds, and what a training with them has to do.

    preparation: tokenizer and text. step: a training step. sentence: translation of a sentence. loss: validation loss.
    valid, test: number of validation sentences that are translated (at most), and of test sentences. given_test: True
    if the user gave the test sets, all of whose sentences count for a comparison.
    """

    preparation: float
    step: float
    sentence: float
    loss: float
    valid: int
    test: int
    given_test: bool = False


@dataclass(frozen=True)
class Plan:
    """Plan of a training. epochs: number of epochs of the steps. seconds: estimated time. test_sentences: number of
    sentences of the test set that are translated."""

    size: str
    consistency: float
    steps: int
    epochs: float
    validations: int
    valid_sentences: int
    test_sentences: int
    seconds: float


@dataclass(frozen=True)
class Candidate:
    """Size with its measured speed. max_steps: number of steps of a training without limit of time."""

    size: str
    consistency: float
    speed: Speed
    steps_per_epoch: int
    max_steps: int

    def plan(self, seconds: float) -> Plan | None:
        """Return the plan of a training that takes at most this time; None if it is too short for any step."""
        speed = self.speed
        tests = speed.test
        while not speed.given_test and tests > MIN_SENTENCES and tests * speed.sentence > TEST_SHARE * seconds:
            tests = max(MIN_SENTENCES, tests // 2)
        fixed = START_SECONDS + speed.preparation + tests * speed.sentence
        sentences = speed.valid
        while sentences > MIN_SENTENCES and MIN_VALIDATIONS * self._validation(sentences) > VALIDATION_SHARE * seconds:
            sentences = max(MIN_SENTENCES, sentences // 2)
        validation = self._validation(sentences)
        fixed += INT8_SHARE * sentences * speed.sentence
        count = int(min(max(VALIDATION_SHARE * seconds / validation, MIN_VALIDATIONS), MAX_VALIDATIONS))
        steps = min(int((seconds - fixed - count * validation) / speed.step), self.max_steps)
        if steps < MIN_VALIDATIONS:
            return None
        return Plan(self.size, self.consistency, steps, steps / self.steps_per_epoch, count, sentences,
                    tests, fixed + count * validation + steps * speed.step)

    def _validation(self, sentences: int) -> float:
        return self.speed.loss + sentences * self.speed.sentence

    def is_enough(self, plan: Plan) -> bool:
        """Return True if the steps of a plan suffice for its size, and for consistency training."""
        if self.consistency and plan.epochs < MIN_CONSISTENCY_EPOCHS:
            return False
        return plan.steps >= min(self.max_steps, max(MIN_STEPS, MIN_EPOCHS * self.steps_per_epoch))


def best_plan(candidates: Iterator[Candidate], seconds: float) -> tuple[Plan | None, list[Candidate]]:
    """Return the plan of the first candidate for whose size the time is enough, else of the last one with a plan. Also
    return the candidates that were tried. candidates: from the best to the quickest."""
    tried, plan = list[Candidate](), None
    for candidate in candidates:
        tried.append(candidate)
        found = candidate.plan(seconds)
        plan = found or plan
        if found and candidate.is_enough(found):
            break
    return plan, tried


def shortest(tried: Sequence[Candidate]) -> str:
    """Return a line that says the shortest time for which one of the candidates has enough steps."""
    for minutes in (first * 10**power for power in range(6) for first in range(1, 10)):
        plan, used = best_plan(iter(tried), 60 * minutes)
        if plan is not None and used[-1].is_enough(plan):
            return f"the shortest time that is worth anything for this text: {minutes:,} minutes ({describe(plan)})"
    return ""


def with_more_time(tried: Sequence[Candidate], chosen: Plan, minutes: float) -> list[str]:
    """Return lines that say which multiples of the time allow a better plan: another size, consistency training, or all
    steps that suit the text."""
    lines, last = [], chosen
    for doublings in range(1, MAX_DOUBLINGS):
        plan, used = best_plan(iter(tried), 60 * minutes * 2**doublings)
        if plan is None or not used[-1].is_enough(plan):
            continue
        is_complete = plan.steps == tried[0].max_steps and len(used) == 1
        if (plan.size, plan.consistency) != (last.size, last.consistency) or is_complete and plan != last:
            lines.append(f"with {minutes * 2**doublings:,g} minutes: {describe(plan)}")
        last = plan
        if is_complete:
            break
    return lines


def describe(plan: Plan) -> str:
    return (f"{plan.size}, {plan.steps:,} steps ({plan.epochs:,.1f} epochs)"
            f"{', with consistency training' if plan.consistency else ''}")


Measure = Callable[[str, float], Candidate]


def candidates(sizes: Sequence[str], consistency: float, measured: Measure) -> Iterator[Candidate]:
    """Yield the candidates from the best to the quickest: each size with consistency training, if it is wanted, and
    without it. The times with it are twice those that were measured without it; `measured` measures a size."""
    for size in sizes:
        plain = measured(size, 0)
        if consistency:
            yield replace(plain, consistency=consistency, speed=replace(plain.speed, step=2 * plain.speed.step))
        yield plain
