"""Gradients small enough to add up and average by hand."""

from __future__ import annotations

from dtlab.grading.questions.answers import Values

__all__ = ["SUMS", "gradient_rows"]

SUMS = {  # formulas of what is made of `gradients`
    "total": "[sum(column) for column in zip(*gradients)]",
    "mean": "[one / len(gradients) for one in total]",
    "own_means": "[sum(gradient) / len(gradient) for gradient in gradients]",
}


def gradient_rows(given: Values) -> list[tuple[str, str]]:
    return [
        (f"worker {rank}", f"gradient {gradient}")
        for rank, gradient in enumerate(given["gradients"])
    ]
