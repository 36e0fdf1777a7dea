"""Gradients small enough to add up and average by hand."""

from __future__ import annotations

from dtlab.grading.questions.answers import Values

__all__ = ["gradient_rows", "mean", "own_means", "scaled", "total"]


def gradient_rows(given: Values) -> list[tuple[str, str]]:
    return [
        (f"worker {rank}", f"gradient {gradient}")
        for rank, gradient in enumerate(given["gradients"])
    ]


def total(given: Values) -> list[float]:
    return [sum(column) for column in zip(*given["gradients"], strict=True)]


def mean(given: Values) -> list[float]:
    return [one / len(given["gradients"]) for one in total(given)]


def own_means(given: Values) -> list[float]:
    return [sum(gradient) / len(gradient) for gradient in given["gradients"]]


def scaled(vector: list[float], factor: float) -> list[float]:
    return [factor * one for one in vector]
