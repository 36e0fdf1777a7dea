"""Ten questions before the course, and what to read first: nothing is graded.

    asked = preflight()          in a notebook: a list to choose from for each question
    asked.answer(3, "50 %")      or in code
    print(asked.advice)

What has not been answered gives no advice.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["QUESTIONS", "Preflight", "PreflightQuestion", "preflight"]

_UNSURE: Final = "I am not sure"


@dataclass(frozen=True)
class PreflightQuestion:
    """A question, its `options`, the one of them that is `right`, and what to `read` if not."""

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
        "Gradients add up until somebody clears them.",
    ),
    PreflightQuestion(
        "A job takes 8 hours on one card and 2 hours on eight. Its efficiency on eight?",
        ("25 %", "50 %", "400 %"), "50 %", _HERE,
        "It is four times as fast, on eight times as many cards.",
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
        ("they swap", "they wait for ever", "the first one wins"), "they wait for ever", _RANKS,
        "Nobody sends before it has received.",
    ),
    PreflightQuestion(
        "What do the ranks of data-parallel training exchange in every step?",
        ("gradients", "activations", "training samples"), "gradients", _DATA,
        "Each has a whole model and other samples; the gradients are averaged.",
    ),
    PreflightQuestion(
        "Microbatches of 16, accumulated twice, on 8 data-parallel ranks: the effective batch?",
        ("32", "128", "256"), "256", "unit 03, batch size, accumulation and learning rate",
        "16 x 2 x 8.",
    ),
    PreflightQuestion(
        "The loss falls in bf16 and stands still in fp16. What do you suspect first?",
        ("gradients too small for fp16", "too few ranks", "a batch that is too large"),
        "gradients too small for fp16", "unit 04, precision and activation memory",
        "fp16 ends at about 6e-8: scale the loss.",
    ),
    PreflightQuestion(
        "What does ZeRO stage 3 share out that stage 2 does not?",
        ("gradients", "parameters", "activations"), "parameters", "unit 05, ZeRO and FSDP",
        "Stage 1 shares the optimizer's state, stage 2 gradients too, stage 3 parameters too.",
    ),
)  # fmt: skip


class Preflight:
    """The questions with the answers so far, and the advice that follows from them."""

    def __init__(self) -> None:
        self.answers: dict[int, str] = {}

    def answer(self, number: int, option: str) -> None:
        """Answer question `number`, 1 to 10. Raises: ValueError for what cannot be chosen."""
        if number not in range(1, len(QUESTIONS) + 1):
            raise ValueError(f"There are questions 1 to {len(QUESTIONS)}, not {number!r}.")
        options = (*QUESTIONS[number - 1].options, _UNSURE)
        if option not in options:
            raise ValueError(f"{option!r} is none of: {', '.join(options)}.")
        self.answers[number] = option

    @property
    def advice(self) -> str:
        """What to read first, in the order of the course; what has not been asked is left out."""
        if not self.answers:
            return "Answer some questions, and what to read first stands here."
        reads, known = dict[str, list[str]](), 0
        for number, given in sorted(self.answers.items()):
            asked = QUESTIONS[number - 1]
            if given == asked.right:
                known += 1
            else:
                told = f"    question {number}: {asked.right}. {asked.why}"
                reads.setdefault(asked.read, []).append(told)
        head = f"{known} of {len(self.answers)} answered as this course would."
        if not reads:
            left = len(QUESTIONS) - len(self.answers)
            end = (
                f"{left} to go."
                if left
                else "Begin with any unit; its Level III shows whether you may skip it."
            )
            return f"{head} {end}"
        lines = [line for read, why in reads.items() for line in (f"  {read}", *why)]
        return "\n".join([f"{head} Read first, in this order:", *lines])

    def _form(self) -> Any:
        """A list to choose from for each question, and the advice below them."""
        import ipywidgets as widgets

        rows, told = [], widgets.HTML(_as_html(self.advice))

        def chosen(number: int, change: Any) -> None:
            if change["new"]:
                self.answer(number, change["new"])
                told.value = _as_html(self.advice)

        for number, asked in enumerate(QUESTIONS, 1):
            options = [("choose", ""), *((each, each) for each in (*asked.options, _UNSURE))]
            field = widgets.Dropdown(
                options=options, value=self.answers.get(number, ""),
                description=f"Question {number}", style={"description_width": "7em"},
                layout=widgets.Layout(width="28em"),
            )  # fmt: skip
            field.observe(lambda change, n=number: chosen(n, change), names="value")
            rows += [widgets.HTML(f"<b>{number}.</b> {html.escape(asked.text)}"), field]
        return widgets.VBox([*rows, told])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The form; the questions as text for readers that have no widgets."""
        lines = [
            f"{number}. {asked.text}  ({' / '.join(asked.options)})"
            for number, asked in enumerate(QUESTIONS, 1)
        ]
        return {**self._form()._repr_mimebundle_(), "text/plain": "\n".join(lines)}


def preflight() -> Preflight:
    """Ten questions that tell what to read first. See `Preflight`."""
    return Preflight()


def _as_html(words: str) -> str:
    """The advice with its lines, in the colours of the page."""
    return f'<div role="status" style="white-space:pre-wrap">{html.escape(words)}</div>'
