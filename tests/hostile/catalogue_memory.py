"""Memory that an answer keeps, where a count of tensors in its own process does not see it."""

from __future__ import annotations

from tests.hostile.submissions import Hostile, code, right_answer

__all__ = ["CATALOGUE"]

COUNTED = "the kernel counts"
STAGE_2 = right_answer(2, "stage_2", "05")


def kept(name: str, tries: str, keep: str) -> Hostile:
    """A stage 2 that keeps all gradients when it should free them: it loses one criterion."""
    answer = code(
        "import torch",
        STAGE_2,
        f"""
        class Keeping(Stage2):
            def reduce(self):
                {keep}
                super().reduce()


        Stage2 = Keeping
        """,
    )
    return Hostile(name, tries, {"stage_2": 10.0}, 60, answers={"Stage2": answer}, says=[COUNTED])


CATALOGUE = [
    kept(
        "gradients as bytes",
        "Keeps all gradients as bytes, which no count of tensors finds.",
        "self.kept = [p.grad.numpy().tobytes() for p in self.parameters if p.grad is not None]",
    ),
    kept(
        "a count that is 0",
        "Keeps all gradients, and replaces what counts tensors in its process.",
        "import dtlab.training.live as live; "
        "live.Storages.bytes = property(lambda self: 0); "
        "self.kept = [p.grad for p in self.parameters]",
    ),
    Hostile(
        "a copy of what is freed",
        "Frees a block as it should, and keeps its numbers as bytes.",
        {"free": 0.0},
        60,
        answers={
            "free": code(
                right_answer(2, "free", "05"),
                """
                right = free


                def free(block, flat):
                    block.kept = flat.clone().numpy().tobytes()
                    right(block, flat)
                """,
            )
        },
        says=[COUNTED],
    ),
]
