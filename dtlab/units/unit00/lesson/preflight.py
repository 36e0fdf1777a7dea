"""Ten ungraded questions before the course, and advice on what to read first.

    questions = preflight()          in a notebook: a drop-down list for each question
    questions.answer(3, "50 %")      or in code
    print(questions.advice)

Unanswered questions do not contribute to the advice.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["QUESTIONS", "Preflight", "PreflightQuestion", "preflight"]

_UNSURE: Final = "I am not sure"


@dataclass(frozen=True)
class PreflightQuestion:
    """A question, its `options`, the `right` option, and what to `read` after a wrong answer."""

    text: str
    options: tuple[str, ...]
    right: str
    read: str
    why: str  # the answer in one sentence


_TORCH: Final = 'before this course: PyTorch\'s tutorials "Learn the Basics"'
_HERE: Final = "this lesson, sections 1 and 7"
_RANKS: Final = "unit 01, ranks and collectives"
_DATA: Final = "unit 02, data parallelism"

QUESTIONS: Final = (
    PreflightQuestion(
        "What does loss.backward() leave behind?",
        ("new weights", "a gradient in each parameter's .grad", "nothing, before step()"),
        "a gradient in each parameter's .grad", _TORCH,
        "backward() computes gradients; the optimizer's step() changes the weights.",
    ),
    PreflightQuestion(
        "backward() is called twice, with no zero_grad() in between. What is in .grad?",
        ("the second gradient", "the sum of both", "an error is raised"),
        "the sum of both", _TORCH,
        "Each backward() adds to .grad until zero_grad() clears it.",
    ),
    PreflightQuestion(
        "A job takes 8 hours on one GPU and 2 hours on eight. What is its efficiency on eight?",
        ("25 %", "50 %", "400 %"), "50 %", _HERE,
        "It is four times as fast, on eight times as many GPUs.",
    ),
    PreflightQuestion(
        "7 billion parameters, Adam, mixed precision. Weights, gradients and optimizer state take",
        ("14 GB", "56 GB", "112 GB"), "112 GB", _HERE,
        "16 bytes per parameter: 2 + 2, and 12 for the optimizer.",
    ),
    PreflightQuestion(
        "Four ranks hold 1, 10, 100 and 1000 and call all_reduce, which sums. Who has 1111?",
        ("rank 0", "all of them", "the notebook"), "all of them", _RANKS,
        "An all-reduce leaves the same sum on every rank.",
    ),
    PreflightQuestion(
        "Two ranks: each first receives from the other, and then sends. What happens?",
        ("they swap", "they wait forever", "the first one wins"), "they wait forever", _RANKS,
        "Each rank sends only after it has received, so no rank ever sends.",
    ),
    PreflightQuestion(
        "What do the ranks of data-parallel training exchange in every step?",
        ("gradients", "activations", "training samples"), "gradients", _DATA,
        "Each rank has the whole model and different samples; the gradients are averaged.",
    ),
    PreflightQuestion(
        "8 data-parallel ranks accumulate two microbatches of 16. What is the effective batch?",
        ("32", "128", "256"), "256", "unit 03, batch size, accumulation and learning rate",
        "16 x 2 x 8.",
    ),
    PreflightQuestion(
        "The loss falls in bf16 but does not change in fp16. What do you suspect first?",
        ("gradients too small for fp16", "too few ranks", "a batch that is too large"),
        "gradients too small for fp16", "unit 04, precision and activation memory",
        "The smallest fp16 number is about 6e-8: scale the loss.",
    ),
    PreflightQuestion(
        "What does ZeRO stage 3 shard that stage 2 does not?",
        ("gradients", "parameters", "activations"), "parameters", "unit 05, ZeRO and FSDP",
        "Stage 1 shards the optimizer state, stage 2 also gradients, stage 3 also parameters.",
    ),
)  # fmt: skip


class Preflight:
    """The ten questions, the learner's answers so far, and the advice that follows from them."""

    def __init__(self) -> None:
        self.answers: dict[int, str] = {}

    def answer(self, number: int, option: str) -> None:
        """Record `option` as the answer to question `number`, from 1 to 10.

        Raises: ValueError if there is no such question, or if it has no such option.
        """
        if number not in range(1, len(QUESTIONS) + 1):
            raise ValueError(f"Answer one of questions 1 to {len(QUESTIONS)}, not {number!r}.")
        options = (*QUESTIONS[number - 1].options, _UNSURE)
        if option not in options:
            raise ValueError(f"{option!r} is none of: {', '.join(options)}.")
        self.answers[number] = option

    @property
    def advice(self) -> str:
        """What to read first, in the order of the course, from the questions answered so far."""
        if not self.answers:
            return "Answer some questions; this line then says what to read first."
        reads, num_right = dict[str, list[str]](), 0
        for number, given in sorted(self.answers.items()):
            question = QUESTIONS[number - 1]
            if given == question.right:
                num_right += 1
            else:
                explanation = f"    question {number}: {question.right}. {question.why}"
                reads.setdefault(question.read, []).append(explanation)
        head = f"{num_right} of {len(self.answers)} answered as this course would."
        if not reads:
            left = len(QUESTIONS) - len(self.answers)
            end = (
                f"{left} questions are left."
                if left
                else "Begin with any unit; its Level III shows whether you can skip it."
            )
            return f"{head} {end}"
        lines = [line for read, why in reads.items() for line in (f"  {read}", *why)]
        return "\n".join([f"{head} Read first, in this order:", *lines])

    def _form(self) -> Any:
        """Build a drop-down list for each question, and the advice below them."""
        import ipywidgets as widgets

        rows, advice = [], widgets.HTML(_as_html(self.advice))

        def chosen(number: int, change: Any) -> None:
            if change["new"]:
                self.answer(number, change["new"])
                advice.value = _as_html(self.advice)

        for number, question in enumerate(QUESTIONS, 1):
            options = [("choose", ""), *((each, each) for each in (*question.options, _UNSURE))]
            field = widgets.Dropdown(
                options=options, value=self.answers.get(number, ""),
                description=f"Question {number}", style={"description_width": "7em"},
                layout=widgets.Layout(width="28em"),
            )  # fmt: skip
            field.observe(lambda change, n=number: chosen(n, change), names="value")
            rows += [widgets.HTML(f"<b>{number}.</b> {html.escape(question.text)}"), field]
        return widgets.VBox([*rows, advice])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the form, with the questions as text for front ends without widgets."""
        lines = [
            f"{number}. {question.text}  ({' / '.join(question.options)})"
            for number, question in enumerate(QUESTIONS, 1)
        ]
        return {**self._form()._repr_mimebundle_(), "text/plain": "\n".join(lines)}


def preflight() -> Preflight:
    """Return ten questions whose answers say what to read first. See `Preflight`."""
    return Preflight()


def _as_html(words: str) -> str:
    """Return the advice as HTML that keeps its line breaks and the colours of the page."""
    return f'<div role="status" style="white-space:pre-wrap">{html.escape(words)}</div>'
