"""Figures of communication during computation: buckets, the wire, gathers, and a straggler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from dtlab.predict.asynchronous import gradients_per_second, mean_delay, step_seconds
from dtlab.predict.communication import BucketTime, Gradient, Link, bucket_times, exposed_seconds
from dtlab.predict.hardware import CARDS
from dtlab.predict.units import counted
from dtlab.show.drawing.charts import KEY, Axis, Chart, Numbers
from dtlab.show.drawing.style import COLOURS, INK, MUTED, Figure, blend, centred, edge
from dtlab.show.words import byte_words, number_words, short_words, time_unit, time_words

__all__ = ["gather_and_free", "overlap", "straggler", "wire_step"]

_WIDTH, _HEIGHT = 9.4, 4.9
_LEFT, _RIGHT = 1.15, 0.25
_BACKWARD, _TRAVEL = 3.68, 3.38  # inches from below: lower ends of the backward and bucket strips
_STRIP: Final = 0.26
_CHARACTER: Final = 0.065
_SIZES: Final = np.geomspace(1e5, 2e8, 100)
_COLLECTIVE: Final = blend(COLOURS["communication"], "#000000", 0.3)


def overlap(
    bucket_bytes: float = 25e6,
    num_layers: int = 100,
    gradient_bytes: float = 100e6,
    backward_seconds: float = 20e-3,
    num_ranks: int = 16,
    latency: float = 5e-6,
    bandwidth: float = 25e9,
    *,
    title: str | None = None,
) -> Figure:
    """Predict one backward pass of equal layers, its buckets' all-reduces, and the exposed time.

    `gradient_bytes` and `backward_seconds` are totals over all layers. Every rank has a link of
    `latency` seconds and `bandwidth` bytes/s one way, and the all-reduces use a ring. The lower
    chart plots exposed time against bucket size. See `dtlab.predict.bucket_times`.
    Raises: ValueError for fewer than one layer or two ranks, and for an impossible bucket or link.
    """
    if num_layers < 1 or num_ranks < 2:
        raise ValueError(f"overlap: give one layer or more and two ranks or more, not "
                         f"{num_layers} and {num_ranks}.")  # fmt: skip
    link = Link(latency, bandwidth)
    layer = Gradient(backward_seconds / num_layers, gradient_bytes / num_layers)
    layers = [layer] * num_layers
    buckets = bucket_times(layers, bucket_bytes, num_ranks, link)
    exposed = exposed_seconds(layers, bucket_bytes, num_ranks, link)
    heading = title or (
        f"{byte_words(gradient_bytes)} of gradients among {counted(num_ranks, 'rank')}, "
        f"buckets of {byte_words(bucket_bytes)}"
    )
    travels = sum(each.end - each.start for each in buckets)
    count = "one all-reduce takes" if len(buckets) == 1 else f"{len(buckets)} all-reduces take"
    note = f"predicted: {count} {time_words(travels)}; {time_words(exposed)} are exposed"
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(heading, note)
    _draw_pass(figure, layers, buckets)
    sizes = np.union1d(_SIZES, [bucket_bytes])
    curve = np.array([exposed_seconds(layers, size, num_ranks, link) for size in sizes])
    best = float(sizes[np.argmin(curve)])
    _draw_curve(figure, sizes, curve, bucket_bytes)
    words = [
        f"{heading}: {note}.",
        f"Backward takes {time_words(backward_seconds)} in {counted(num_layers, 'layer')};",
        f"the first bucket's all-reduce starts after {time_words(buckets[0].start)},",
        f"the last one ends after {time_words(buckets[-1].end)}.",
        "Below, exposed time against size of bucket:",
        f"least, {time_words(float(curve.min()))}, at {byte_words(best)};",
        f"{time_words(float(curve[-1]))} with one bucket.",
    ]
    figure.alt_text = " ".join(words)
    return figure


def _draw_pass(figure: Figure, layers: Sequence[Gradient], buckets: Sequence[BucketTime]) -> None:
    """Draw the backward pass layer by layer, and the buckets below it, on one time axis."""
    end = buckets[-1].end
    axes = figure.sheet(_LEFT, _TRAVEL - 0.1, _WIDTH - _LEFT - _RIGHT, 0.75)
    low = _TRAVEL - 0.1
    axes.set_xlim(0, end)
    axes.set_ylim(low, low + 0.75)
    axes.set_axis_on()
    axes.set_yticks([])
    unit, factor = time_unit(end)
    ticks = [tick for tick in _round_steps(end * factor) if tick <= end * factor]
    axes.set_xticks([tick / factor for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.tick_params(axis="x", colors=MUTED, labelsize=8, length=3)
    axes.set_xlabel(f"{unit} since backward began", fontsize=8, color=MUTED)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    scale = (_WIDTH - _LEFT - _RIGHT) / end
    now = 0.0
    for number, layer in enumerate(layers):
        words = f"layer {len(layers) - number}"
        _draw_bar(axes, (now, now + layer.seconds), _BACKWARD, COLOURS["backward"], words, scale)
        now += layer.seconds
    for number, bucket in enumerate(buckets):
        words = f"bucket {number}"
        _draw_bar(axes, bucket[2:], _TRAVEL, _COLLECTIVE, words, scale)
    if end > now:
        waiting = Rectangle((now, _BACKWARD), end - now, _STRIP, facecolor=COLOURS["idle"],
                            edgecolor=edge(COLOURS["idle"]), hatch="//////", linewidth=0.5,
                            gid="exposed")  # fmt: skip
        axes.add_artist(waiting)
    for words, place in (("backward", _BACKWARD), ("all-reduce", _TRAVEL)):
        y = place + _STRIP / 2
        figure.text((_LEFT - 0.12) / _WIDTH, y / _HEIGHT, words, fontsize=9, color=INK,
                    ha="right", va="center")  # fmt: skip


def _draw_bar(
    axes: Axes, times: tuple[float, ...], low: float, fill: str, words: str, scale: float
) -> None:
    """Draw a box from one time to another, with its name if it fits."""
    start, end = times
    box = Rectangle((start, low), end - start, _STRIP, facecolor=fill, edgecolor=edge(fill),
                    linewidth=min(0.5, 5 * (end - start) * scale), gid=words)  # fmt: skip
    axes.add_artist(box)
    for text in (words, words.split(" ")[1]):
        if len(text) * _CHARACTER + 0.1 < (end - start) * scale:
            axes.text((start + end) / 2, low + _STRIP / 2, text, **centred(7, "#FFFFFF"))
            return


def _draw_curve(figure: Figure, sizes: Numbers, curve: Numbers, here: float) -> None:
    """Draw exposed time against bucket size, with a line at the current size."""
    name, exposed, least = "exposed", float(curve[sizes == here][0]), float(curve.min())
    across = Axis("size of a bucket", (float(sizes[0]), float(sizes[-1])), True, _bytes)
    top = 1.15 * float(curve.max())
    upwards = Axis("exposed", (0.0, top), write=lambda t: short_words(time_words(t)) if t else "0")
    chart = Chart(figure, (_LEFT, 0.55, _WIDTH - _LEFT - KEY, 1.85), [name], across, upwards)
    chart.draw_curve(name, sizes, curve, "predicted")
    chart.draw_upright(here, byte_words(here))
    chart.draw_points(here, {name: exposed})
    best = byte_words(float(sizes[np.argmin(curve)]))
    chart.draw_key({name: f"{time_words(exposed)} here\nleast: {time_words(least)}\nat {best}"})


def _bytes(count: float) -> str:
    return short_words(byte_words(count))


def _round_steps(end: float) -> list[float]:
    """Return round numbers from 0 to `end`."""
    return [float(tick) for tick in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(0, end)]


# A step of data parallelism: does the wire hide behind compute? ---------------------------------

_LAYERS: Final = 40
_PEAK: Final = CARDS["H100 SXM"].bf16_flops or 0.0
_TOKENS: Final = np.geomspace(256, 2**20, 97)


def wire_step(
    bandwidth: float = 50e9,
    num_gpus: int = 64,
    tokens: float = 4096,
    bytes_per_gradient: float = 2,
    overlaps: bool = True,
    *,
    latency: float = 5e-6,
    parameters: float = 1e9,
    utilisation: float = 0.4,
    title: str | None = None,
) -> Figure:
    """Predict a data-parallel step on H100s: backward, the all-reduces, and the speed-up.

    `tokens` are those of one GPU in one step. Each takes 2 FLOPs per parameter in forward and 4 in
    backward, at `utilisation` of the bf16 peak. A ring sends `bytes_per_gradient` per parameter
    over links of `bandwidth` bytes/s one way; with `overlaps`, in buckets of 25 MB while backward
    continues. The lower chart plots the speed-up over one GPU against the tokens, if each GPU
    computes that many.
    Raises: ValueError for fewer than two GPUs, or values that are not above 0.
    """
    numbers = bandwidth, tokens, bytes_per_gradient, parameters, utilisation
    if num_gpus < 2 or not all(0 < each < math.inf for each in numbers):
        raise ValueError(f"wire_step: give two GPUs or more, and values above 0; not {num_gpus} "
                         f"GPUs and {numbers}.")  # fmt: skip
    link, size = Link(latency, bandwidth), bytes_per_gradient * parameters
    bucket = 25e6 if overlaps else size

    def step(count: float) -> tuple[list[Gradient], float, float]:
        """Return backward's layers, all compute, and the exposed time, for tokens per GPU."""
        forward = 2 * parameters * count / (_PEAK * utilisation)
        layers = [Gradient(2 * forward / _LAYERS, size / _LAYERS)] * _LAYERS
        return layers, 3 * forward, exposed_seconds(layers, bucket, num_gpus, link)

    layers, computes, exposed = step(tokens)
    faster = num_gpus * computes / (computes + exposed)
    travels = exposed_seconds([Gradient(0, size / _LAYERS)] * _LAYERS, bucket, num_gpus, link)
    words = f"{num_gpus:,} GPUs with {tokens:,.0f} tokens each, links of {_bytes(bandwidth)}/s"
    heading = title or f"{words}, {'overlap' if overlaps else 'no overlap'}"
    limit = "the wire is the wall" if exposed > 0.1 * computes else "compute is the wall"
    buckets = bucket_times(layers, bucket, num_gpus, link)
    latencies = len(buckets) * 2 * (num_gpus - 1) * latency
    note = (f"predicted: compute {time_words(computes)}, all-reduces {time_words(travels)} "
            f"({time_words(latencies)} latency in {counted(len(buckets), 'bucket')}), "
            f"exposed {time_words(exposed)}; "
            f"{number_words(faster)} times one GPU: {limit}")  # fmt: skip
    figure = Figure(_WIDTH, _HEIGHT)
    figure.heading(heading, note)
    _draw_pass(figure, layers, buckets)
    counts = np.union1d(_TOKENS, [tokens])
    times = [step(count)[1:] for count in counts]
    curve = np.array([num_gpus * each / (each + more) for each, more in times])
    name = "speed-up"
    across = Axis("tokens per GPU and step", (float(counts[0]), float(counts[-1])), True,
                  lambda count: f"{count:,.0f}")  # fmt: skip
    upwards = Axis("times one GPU", (0.0, 1.08 * num_gpus), write=lambda each: f"{each:,.0f}")
    chart = Chart(figure, (_LEFT, 0.55, _WIDTH - _LEFT - KEY, 1.85), [name], across, upwards)
    chart.draw_curve(name, counts, curve, "predicted")
    chart.draw_level(num_gpus, f"ideal: {num_gpus:,}")
    chart.draw_upright(tokens, f"{tokens:,.0f}")
    chart.draw_points(tokens, {name: faster})
    enough = counts[curve >= 0.9 * num_gpus]
    most = f"90 % from {enough[0]:,.0f} on" if len(enough) else "90 % at no point here"
    share = f"efficiency {100 * faster / num_gpus:.0f} %"
    chart.draw_key({name: f"{number_words(faster)} here\n{share}\n{most}"})
    ends = (f"{number_words(curve[i])} at {counts[i]:,.0f}" for i in (0, -1))
    figure.alt_text = (f"{heading}: {note}. Below, the speed-up over one GPU against tokens per "
                       f"GPU: {', '.join(ends)}; {share}, {most}.")  # fmt: skip
    return figure


# The cost of a late worker: if all workers wait for it, up to a bound, or not at all -------------

_STEPS: Final = 160
_SECONDS: Final = 0.1  # of a step; only the ratio of the delay to it matters
_DELAYS: Final = np.linspace(0, 4, 17)  # in steps


def straggler(
    delay: float = 1.0,
    num_workers: int = 8,
    staleness: int = 3,
    *,
    turns: bool = False,
    title: str | None = None,
) -> Figure:
    """Predict the gradients per second of `num_workers` workers if one of them is late.

    `delay` is in steps: 1 means that the late worker's step takes twice as long. The same worker
    is late in every step or, with `turns`, a different one each time. `staleness` is the number of
    steps that a worker may be ahead of the slowest in the bounded case, which lies between sync
    and async. See `dtlab.predict.finish_times`.
    Raises: ValueError for fewer than two workers, a delay below 0, or a staleness below 1.
    """
    if num_workers < 2 or staleness < 1 or not 0 <= delay < math.inf:
        raise ValueError(f"straggler: give two workers or more, a staleness of 1 or more and a "
                         f"delay of 0 or more, not {num_workers}, {staleness} and {delay}."
                         )  # fmt: skip
    leads = {"sync": 0.0, f"bounded, {staleness} ahead": staleness, "async": math.inf}
    which = "another one in each step" if turns else "always the same one"
    steps = f"{delay:g} step{'s' * (delay != 1)}"
    heading = title or f"One of {num_workers} workers is late by {steps}, {which}"
    note = "predicted; 100 % is the rate without a delay"
    most = max(float(_DELAYS[-1]), delay)
    across = Axis("delay of the late worker, in steps", (0, most * 1.02))
    upwards = Axis("gradients per second", (0, 109), write=lambda share: f"{share:g} %")
    chart = Chart.below(heading, note, list(leads), across, upwards)
    delays = np.union1d(_DELAYS, [delay])
    here, asides = {}, {}
    for name, lead in leads.items():
        shares = [_share(num_workers, each, lead, turns) for each in delays]
        chart.draw_curve(name, delays, np.array(shares), "predicted")
        here[name] = shares[int(np.searchsorted(delays, delay))]
        late = mean_delay(_seconds(num_workers, delay, turns), lead)
        asides[name] = f"{here[name]:.0f} %\na gradient is {late:.1f}\nupdates late"
    chart.draw_upright(delay, f"{delay:g}")
    chart.draw_points(delay, here)
    chart.draw_key(asides)
    facts = [f"{name} {' '.join(words.split())}" for name, words in asides.items()]
    chart.figure.alt_text = (
        f"{heading} ({note}). {'; '.join(facts)}. Gradients per second fall as the delay grows "
        f"to {most:g} steps: {', '.join(_fall(num_workers, most, leads, turns))}."
    )
    return chart.figure


def _seconds(num_workers: int, delay: float, turns: bool) -> Numbers:
    return step_seconds(num_workers, _STEPS, _SECONDS, delay * _SECONDS, turns=turns)


def _share(num_workers: int, delay: float, lead: float, turns: bool) -> float:
    """Return the gradients per second, in percent of the rate without a delay."""
    seconds = _seconds(num_workers, delay, turns)
    return 100 * gradients_per_second(seconds, lead) * _SECONDS / num_workers


def _fall(num_workers: int, delay: float, leads: dict[str, float], turns: bool) -> list[str]:
    return [f"{name} to {_share(num_workers, delay, lead, turns):.0f} %"
            for name, lead in leads.items()]  # fmt: skip


# ZeRO stage 3: when each layer is gathered, computed and freed ---------------------------------


def gather_and_free(num_layers: int = 4, *, prefetch: bool = True) -> Figure:
    """Draw one step of ZeRO stage 3: when each layer is gathered, computed, freed and reduced.

    There is a row for each layer, and time runs from left to right. The grey band is the time
    during which the rank holds the whole layer. An all-gather takes as long as a layer's forward
    pass here. With `prefetch` a layer is gathered while the previous layer is computed (Zhao et
    al. 2023, "PyTorch FSDP", section 3.3).
    Raises: ValueError for fewer than 2 layers, or more than 8.
    """
    if not 2 <= num_layers <= 8:
        raise ValueError(f"gather_and_free: give 2 to 8 layers, not {num_layers}.")
    passes, reduces = _layer_times(num_layers, prefetch)
    end = max(reduces) + 1.05
    height = 1.25 + 0.4 * num_layers
    figure = Figure(_WIDTH, height)
    words = "One step of ZeRO stage 3: gather a layer, compute, free it"
    how = "with" if prefetch else "without"
    below = f"{how} prefetch; grey: the rank holds the whole layer; elsewhere it holds a shard"
    figure.heading(words, below)
    axes = figure.sheet(_LEFT, 0.5, _WIDTH - _LEFT - _RIGHT, height - 1.25)
    axes.set(xlim=(0, end), ylim=(0, 0.4 * num_layers))
    scale = (_WIDTH - _LEFT - _RIGHT) / end
    forward, backward = COLOURS["forward"], COLOURS["backward"]
    for layer in range(num_layers):
        low = 0.4 * (num_layers - 1 - layer) + 0.07
        figure.text((_LEFT - 0.12) / _WIDTH, (0.5 + low + _STRIP / 2) / height, f"layer {layer}",
                    fontsize=9, color=INK, ha="right", va="center")  # fmt: skip
        for (gather, start, stop), fill in zip(passes[layer], (forward, backward), strict=True):
            whole = Rectangle((gather, low - 0.05), stop - gather, _STRIP + 0.1,
                              facecolor=COLOURS["idle"], gid=f"whole {layer}")  # fmt: skip
            axes.add_patch(whole)
            _draw_box(axes, (gather, gather + 1), low, COLOURS["communication"], "gather", scale)
            name = "forward" if fill == forward else "backward"
            _draw_box(axes, (start, stop), low, fill, name, scale)
        times = (reduces[layer], reduces[layer] + 1)
        _draw_box(axes, times, low, _COLLECTIVE, "reduce", scale)
    figure.text(_LEFT / _WIDTH, 0.22 / height, "time  →      gather: all-gather of the layer's "
                "parameters      reduce: reduce-scatter of its gradients      "
                "between the passes: the loss",
                fontsize=8.5, color=MUTED, va="center")  # fmt: skip
    held = max(sum(gather <= moment < stop for each in passes for gather, _, stop in each)
               for moment in range(int(end)))  # fmt: skip
    figure.alt_text = (
        f"{words} ({below}). {counted(num_layers, 'layer')}, from the first to the last in "
        f"forward and back in backward, each gathered twice and reduced once; "
        f"at most {held} whole layers at a time."
    )
    return figure


def _layer_times(
    num_layers: int, prefetch: bool
) -> tuple[list[list[tuple[int, int, int]]], list[int]]:
    """Return (gather, start, stop) of each layer's two passes, and the start of its reduce."""
    passes: list[list[tuple[int, int, int]]] = [[] for _ in range(num_layers)]
    reduces, now = [0] * num_layers, 0
    order = [(layer, 1) for layer in range(num_layers)]
    order += [(layer, 2) for layer in reversed(range(num_layers))]  # in between: the loss
    before = 0  # start of the computation before this one
    for layer, length in order:
        is_first = not passes[layer] and layer == 0
        turns = length == 2 and layer == num_layers - 1  # the first backward: nothing to prefetch
        now += turns
        gather = before if prefetch and not is_first and not turns else now
        start = max(now, gather + 1)
        passes[layer].append((gather, start, start + length))
        before, now = start, start + length
        reduces[layer] = now
    return passes, reduces


def _draw_box(
    axes: Axes, times: tuple[float, float], low: float, fill: str, words: str, scale: float
) -> None:
    """Draw a box from one time to another, with its name if it fits."""
    box = Rectangle((times[0], low), times[1] - times[0], _STRIP, facecolor=fill,
                    edgecolor=edge(fill), linewidth=0.5, gid=words)  # fmt: skip
    axes.add_patch(box)
    if (times[1] - times[0]) * scale > _CHARACTER * len(words):
        ink = "white" if fill == COLOURS["backward"] else INK
        axes.text(sum(times) / 2, low + _STRIP / 2, words, **centred(7.5, ink))
