"""Widget for plans.

explore_mesh()    tensor, pipeline and ZeRO stage against memory and step time
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dtlab.predict.hardware import LINKS, Cluster
from dtlab.predict.plan import Plan, Transformer, evaluate
from dtlab.show.drawing.style import Figure
from dtlab.show.figures.strategy import mesh_figure
from dtlab.show.widgets.dials import Dial, choice, count_scale
from dtlab.show.widgets.explorer import Explorer

__all__ = ["explore_mesh"]

_POWERS: Final = tuple(2**power for power in range(11))
_GPT_3: Final = Transformer(96, 12288, 96, 51200, 2048)
_CLUSTER: Final = Cluster(128, 8, LINKS["NVLink 3"], LINKS["InfiniBand HDR"])


def explore_mesh(
    model: Transformer = _GPT_3,
    cluster: Cluster = _CLUSTER,
    batch: int = 1536,
    *,
    card: str = "A100 SXM 80 GB",
    efficiency: float = 0.5,
) -> Explorer:
    """Change the axes of a mesh, and see which link each uses, the memory and the step time.

    The data axis takes the GPUs that the other axes leave. The starting model is GPT-3 on 1,024
    A100 GPUs. See `predict.plan.evaluate` for the arguments.
    """
    names: Mapping[str, tuple[str, int]] = {
        "tensor": ("Tensor ranks", 8), "pipeline": ("Pipeline stages", 8),
        "microbatch": ("Microbatch size", 1),
    }  # fmt: skip
    dials = {
        name: Dial(label, count_scale(_POWERS), start) for name, (label, start) in names.items()
    }
    choices = {
        "zero": choice("ZeRO stage", ["0", "1", "2", "3"]),
        "recompute": choice("Recomputation", ["none", "full"]),
    }

    def draw(tensor: int, pipeline: int, microbatch: int, zero: str, recompute: str) -> Figure:
        data = max(1, cluster.size // (tensor * pipeline))
        plan = Plan(
            tensor, 1, pipeline, data, int(zero), microbatch,
            recompute="full" if recompute == "full" else "none", sequence_parallel=tensor > 1,
        )  # fmt: skip
        found = evaluate(model, cluster, batch, plan, card=card, efficiency=efficiency)
        title = f"{found.step_seconds:.3g} s a step" if found.seconds else "This plan cannot run"
        if found.seconds and found.reason:
            title = "This plan does not fit"
        lines = [*found.words()]
        if found.reason and found.seconds:
            lines.insert(0, f"It {found.reason}.")
        sizes = {"data": data, "pipeline": pipeline, "tensor": tensor}
        return mesh_figure(sizes, cluster.gpus_per_node, lines=lines, title=title)

    rows = [each.widget for each in dials.values()], list(choices.values())
    return Explorer(draw, dials | choices, rows)
