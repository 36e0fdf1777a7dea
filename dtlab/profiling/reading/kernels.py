"""Which kernels communicate: a table of names, of NCCL and of other libraries.

A profiler records the arguments of NCCL's collectives. Other libraries launch kernels that it
cannot tell from compute, so that they are known by their names only.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from dtlab.errors import ArgumentError

__all__ = ["LIBRARIES", "NCCL", "CommKernels", "Library", "Spans", "operation", "pattern_of"]


class Library(NamedTuple):
    """A library whose kernels communicate.

    `pattern` is a regular expression for the function's name, without "void " and the arguments;
    for `whole`, it is one for the whole name, because the arguments' types show the library.
    `source` is where the names were looked up.
    """

    name: str
    pattern: str
    source: str
    whole: bool = False


NCCL: Final = "NCCL, RCCL"

LIBRARIES: Final = (
    Library(NCCL, r"^\w*(nccl|rccl)",
            "NVIDIA/nccl src/device/generate.py; ROCm/rccl src/device/common.h"),
    Library("MSCCL", r"^msccl\w*Kernel", "mscclKernel_Sum_half_Simple in traces of ROCm/rccl"),
    # Not the layout of the tokens, which a rank computes alone, nor CUB's kernels.
    Library("DeepEP",
            r"^(deep_ep|dpsk::ep)::(?!CUB_|layout::|(\w+::)*get_dispatch_layout)",
            "deepseek-ai/DeepEP csrc/kernels; traces of deepseek-ai/profile-data"),
    Library("MoRI", r"^mori::|Ep(Dispatch|Combine)\w*Kernel", "ROCm/mori src/ops"),
    Library("vLLM, SGLang, aiter", r"cross_device_reduce|quickreduce::|quick_?all_?reduce",
            "vllm-project/vllm csrc/custom_all_reduce.cuh, csrc/quickreduce; ROCm/aiter"),
    Library("FlashInfer, TensorRT-LLM",
            r"trtllm_\w*(allreduce|alltoall)|allreduce_fusion|ShotAllReduce|moe_?(A2A|comm)\w*"
            r"|userbuffers",
            "flashinfer-ai/flashinfer include/flashinfer/comm; NVIDIA/TensorRT-LLM "
            "cpp/tensorrt_llm/kernels; NVIDIA/TransformerEngine comm_gemm_overlap/userbuffers"),
    Library("PyTorch's symmetric memory",
            r"(^|::)multimem_|(one|two)_shot_all_reduce|symmetric_memory::"
            r"|(^|::)(put|wait)_signal_kernel|(^|::)(allToAllV|exchangeSplitAndOffset)",
            "pytorch/pytorch torch/csrc/distributed/c10d/symm_mem: CUDASymmetricMemoryOps.cu, "
            "nvshmem_extension.cu"),
    Library("NVSHMEM, rocSHMEM", r"(nv|roc)shmem", whole=True,
            source="NVIDIA/nvshmem src/include/internal/non_abi/nvshmemi_h_to_d_coll_defs.cuh"),
    Library("NVSHMEM", r"_on_stream_kernel(_warp|_block)?$", "as above"),
    Library("MSCCL++", r"mscclpp::", whole=True,
            source="microsoft/mscclpp src/executor, apps/nccl/src: their kernels take channels"),
    Library("oneCCL", r"^oneccl_|^(oneapi::)?ccl::|^ccl_",
            "oneccl_allreduce_pcie, oneccl_allgatherv_pcie in traces of torch-xpu; "
            "uxlfoundation/oneCCL src/sched/sycl"),
    Library("HCCL", r"^hcom_|^hccl", "hcom_allReduce__428_0_1: COMMUNICATION_OP in the manual of "
            "Ascend's msprof"),
    # Such as Triton's, which have the name of their Python function.
    Library("by name",
            r"(?<!Warp)(?<!Block)(?<!warp)(?<!block)(AllReduce|Allreduce|allReduce|AllGather|"
            r"Allgather|allGather|ReduceScatter|Reducescatter|reduceScatter|AllToAll|Alltoall|"
            r"allToAll)"
            r"|(?<![A-Za-z])(?<!warp_)(?<!block_)"
            r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all)",
            "meta-pytorch/kraken; ByteDance-Seed/Triton-distributed; InternLM/lmdeploy "
            "src/turbomind/comm"),
)  # fmt: skip

# Kernels that compute and communicate at once count as compute.
_FUSED = re.compile("gemm|matmul|_mm_|attn|attention|fmha|conv", re.IGNORECASE)
# Kernels that PyTorch and its libraries launch around a collective, such as copies.
_ORDINARY = re.compile(
    r"at::native|at_cuda|\bcub::|cutlass|cublas|cudnn|nvjet|elementwise|CatArray|"
    r"^(Memcpy|Memset)|^triton_(poi|red|per|tem)_|gemm",
    re.IGNORECASE,
)
_ROWS = [(row.name, re.compile(row.pattern), row.whole) for row in LIBRARIES]

_OPERATIONS: Final = {  # in this order, in the letters of a function's name
    "reducescatter": "reduce_scatter", "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all",
    "dispatch": "all_to_all", "combine": "all_to_all", "broadcast": "broadcast",
    "barrier": "barrier",
}  # fmt: skip


def _function(name: str) -> str:
    """Return a kernel's function without its return type, template and arguments."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", name)
    return re.sub(r"^(static |void )+", "", re.split(r"[<(]", name, maxsplit=1)[0]).strip()


def operation(name: str) -> str:
    """Return the collective after which a kernel is named, or "collective"."""
    letters = re.sub("[^a-z]", "", _function(name).lower())
    return next((each for key, each in _OPERATIONS.items() if key in letters), "collective")


class CommKernels:
    """Tells kernels that communicate from others: by `LIBRARIES`, and by the user's `patterns`.

    Raises: ArgumentError if a pattern is not a regular expression.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.counts: Counter[str] = Counter()  # of the kernels of other libraries than NCCL
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._unused: set[str] = set()
        self._libraries: dict[str, str] = {}  # by name: few names have many kernels
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            try:
                self._patterns[pattern] = re.compile(pattern)
            except (re.error, TypeError) as error:
                raise ArgumentError(
                    f"{pattern!r} is no regular expression for the names of communication "
                    f"kernels: {error}."
                ) from None
            self._unused.add(pattern)

    def library(self, name: str) -> str:
        """Return the library of a kernel that communicates, or "" for other kernels."""
        if name not in self._libraries:
            self._libraries[name] = self._find(name)
        return self._libraries[name]

    def is_users(self, name: str) -> bool:
        """Return whether one of the user's patterns is found in the name."""
        found = {key for key, pattern in self._patterns.items() if pattern.search(name)}
        self._unused -= found
        return bool(found)

    def _find(self, name: str) -> str:
        if self.is_users(name):
            return "your pattern"
        function = _function(name)
        for library, pattern, whole in _ROWS:
            if pattern.search(name if whole else function):
                fused = _FUSED.search(function) and library not in (NCCL, "DeepEP")
                return "" if fused else library
        return ""

    def may_communicate(self, name: str) -> bool:
        """Return whether a kernel that is in no row may communicate: it is not an ordinary one."""
        return not self.library(name) and not _ORDINARY.search(name)

    def notes(self) -> list[str]:
        """Say which kernels count as communication by name, and which patterns find none."""
        notes = []
        if self.counts:
            most = self.counts.most_common(4)
            names = ", ".join(f"{_function(name) or name} ({count})" for name, count in most)
            more = f" and {len(self.counts) - 4} with other names" * (len(self.counts) > 4)
            notes.append(
                f"Counted as communication by their names: {names}{more}. These kernels do not "
                "name their group, so waiting for a late rank counts as communication too."
            )
        notes += [
            f"No kernel or operator matches the pattern {pattern!r} of communication kernels."
            for pattern in self._patterns
            if pattern in self._unused
        ]
        return notes


def pattern_of(kernel: str) -> str:
    """Return a regular expression that finds the kernel by the beginning of its name."""
    return re.escape(re.split(r"[<(]", kernel, maxsplit=1)[0].strip() or kernel[:40])


class Spans:
    """Periods with names, among which one that overlaps another period is found fast."""

    def __init__(self, spans: Iterable[tuple[float, float, str]]) -> None:
        self._spans = sorted(spans)
        self._starts = [start for start, _, _ in self._spans]
        latest = accumulate((end for _, end, _ in self._spans), max)
        self._ends = list(latest)  # the latest end so far

    def at(self, start: float, end: float) -> str:
        """Return the name of a period that overlaps this one, or ""."""
        before = bisect_left(self._starts, end)
        first = bisect_right(self._ends, start, hi=before)
        return self._spans[first][2] if first < before else ""
