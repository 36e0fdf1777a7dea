"""Kernels that communicate, of NCCL and of other libraries; and jobs whose kernels are missing."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dtlab.cli import main
from dtlab.errors import ArgumentError
from dtlab.profiling.diagnosis import Diagnosis, diagnose
from dtlab.profiling.reading.kernels import LIBRARIES, CommKernels, operation
from dtlab.trace import Trace

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NAMES = [  # as public traces, issues and sources have them
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL, RCCL",
     "all_reduce"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)", "NCCL, RCCL",
     "all_reduce"),
    ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "NCCL, RCCL", "collective"),
    ("mscclKernel_Sum_half_Simple_Sum_0", "MSCCL", "collective"),
    ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", "DeepEP", "all_to_all"),
    ("void dpsk::ep::internode::notify_dispatch<false, 4>(int const*)", "DeepEP", "all_to_all"),
    ("void deep_ep::internode_ll::combine<true>(void*)", "DeepEP", "all_to_all"),
    ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "DeepEP", "all_to_all"),
    ("void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(args)", "MoRI", "all_to_all"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
     "vLLM, SGLang, aiter", "all_reduce"),
    ("void sglang::cross_device_reduce_2stage<__half, 4>(sglang::RankData*)",
     "vLLM, SGLang, aiter", "all_reduce"),
    ("_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEv", "vLLM, SGLang, aiter",
     "all_reduce"),
    ("void quickreduce::allreduce_prototype_twoshot<x>(x)", "vLLM, SGLang, aiter", "all_reduce"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
     "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8>(x)",
     "FlashInfer, TensorRT-LLM", "all_reduce"),
    ("flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusion<8>(x)",
     "FlashInfer, TensorRT-LLM", "all_reduce"),
    ("tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel(x)", "FlashInfer, TensorRT-LLM",
     "all_to_all"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
     "PyTorch's symmetric memory", "all_reduce"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(x)",
     "PyTorch's symmetric memory", "all_reduce"),
    ("void <unnamed>::multimem_one_shot_all_reduce_kernel<float, 16>(float*)",
     "PyTorch's symmetric memory", "all_reduce"),
    ("c10d::nvshmem_extension::allToAllV(void*, void*, long*, nvshmem_team_t)",
     "PyTorch's symmetric memory", "all_to_all"),
    ("my_put(int*, nvshmem_team_t)", "NVSHMEM, rocSHMEM", "collective"),
    ("void alltoall_on_stream_kernel<float>(int, float*, float const*)", "NVSHMEM", "all_to_all"),
    ("void mscclpp::executionKernel<__half, mscclpp::LL16Packet>(int, __half*)", "MSCCL++",
     "collective"),
    ("void allreduce7<half>(half*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*)", "MSCCL++",
     "all_reduce"),
    ("oneccl_allreduce_pcie<half, Rt64_128_PCIE, RingTransmit>", "oneCCL", "all_reduce"),
    ("oneccl_allgatherv_pcie<half>", "oneCCL", "all_gather"),
    ("hcom_allReduce__428_0_1", "HCCL", "all_reduce"),
    ("hcom_alltoallv_", "HCCL", "all_to_all"),
    ("one_shot_all_reduce_kernel", "PyTorch's symmetric memory", "all_reduce"),
    ("_all_gather_push_kernel", "by name", "all_gather"),
    ("kernel_reduce_scatter_ring", "by name", "reduce_scatter"),
    ("turbomind::comm::AllreduceKernel_Simple<x>(x)", "by name", "all_reduce"),
]  # fmt: skip
COMPUTE = [
    "sm90_xmma_gemm_bf16bf16_bf16f32", "void at::native::reduce_kernel<512, 1>(x)",
    "void dpsk::ep::cuda::get_dispatch_layout<256>(int*)", "cdpsk::ep::CUB_200::DeviceScan<x>",
    "deep_ep::layout::get_dispatch_layout<256, 32>(x)",
    "void softmax<cub::BlockAllReduce<float>>(float*)", "blockAllReduceSum<float>(x)",
    "warp_all_reduce_max(float*)", "triton_red_fused_add_0", "_all_gather_matmul_kernel",
    "gemm_one_shot_all_reduce_fused", "void at::native::(anonymous namespace)::CatArray<x>(x)",
    "flash_fwd_kernel<dispatch>(x)", "Memcpy DtoD (Device -> Device)", "barrett_reduction",
]  # fmt: skip


@pytest.mark.parametrize(("name", "library", "collective"), NAMES)
def test_kernels_that_communicate_are_known_by_name(
    name: str, library: str, collective: str
) -> None:
    assert CommKernels().library(name) == library
    assert library == "NCCL, RCCL" or operation(name) == collective


def test_each_library_has_a_source_and_a_name_that_is_tested() -> None:
    assert all(library.source for library in LIBRARIES)
    assert {library.name for library in LIBRARIES} == {library for _, library, _ in NAMES}


@pytest.mark.parametrize("name", COMPUTE)
def test_kernels_that_compute_are_not_communication(name: str) -> None:
    assert CommKernels().library(name) == ""


# Traces ------------------------------------------------------------------------------------------


def entry(cat: str, name: str, tid: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0 if tid > 6 else 100, "tid": tid,
            "ts": ts, "dur": dur, "args": args}  # fmt: skip


def job(comm: str, *more: dict[str, Any]) -> dict[str, Any]:
    """Three steps of 2 ms: 0.8 ms of a matrix product, and then 0.4 ms of the kernel `comm`."""
    events = list(more)
    for at in (0, 2000, 4000):
        events += [
            entry("user_annotation", f"ProfilerStep#{at // 2000}", 1, at, 2000),
            entry("cuda_runtime", "cudaLaunchKernel", 1, at + 20, 5, correlation=at),
            entry("kernel", "sm90_gemm", 7, at + 100, 800, stream=7, correlation=at),
            entry("kernel", comm, 9, at + 900, 400, stream=9),
        ]
    return {"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}


def read(folder: Path, content: Any, *comm: str) -> tuple[Trace, Diagnosis]:
    path = folder / "a.json"
    path.write_text(json.dumps(content))
    trace = Trace.from_chrome(path, comm=comm)
    return trace, diagnose(trace)


@pytest.mark.parametrize(("name", "library", "collective"), NAMES[3::4])
def test_communication_of_other_libraries_is_no_compute(
    name: str, library: str, collective: str, tmp_path: Path
) -> None:
    trace, found = read(tmp_path, job(name))
    assert trace.ops() == {collective: 3}
    assert found.seconds[0]["compute"] == pytest.approx(0.8e-3)
    assert found.seconds[0]["communication"] == pytest.approx(0.4e-3)
    assert found.notes[0].startswith("Counted as communication by their names: ")
    assert "(3). These kernels do not name their group" in found.notes[0]


@pytest.mark.parametrize("pattern", ["my_company", "^void my_.*send", r"ring_(send|recv)\b"])
def test_patterns_of_the_user(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = job("void my_company::ring_send<float>(float*)")
    assert read(tmp_path, content)[1].seconds[0]["communication"] == 0
    trace, found = read(tmp_path, content, "unused", pattern)
    assert trace.ops() == {"collective": 3}
    assert found.seconds[0]["communication"] == pytest.approx(0.4e-3)
    assert "No kernel or operator matches the pattern 'unused'" in found.notes[1]
    assert len(found.notes) == 2
    command = ["analyze", "--json", "--comm", pattern, str(tmp_path / "a.json")]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ranks"][0]["communication_seconds"] == pytest.approx(0.4e-3)


def test_a_pattern_of_the_user_for_operators_of_a_cpu(tmp_path: Path) -> None:
    content = {"traceEvents": [
        entry("cpu_op", "aten::mm", 1, 0, 100), entry("cpu_op", "mylib::all_reduce", 1, 100, 50),
        entry("cpu_op", "aten::mm", 1, 150, 100),
    ]}  # fmt: skip
    trace, found = read(tmp_path, content, "mylib::")
    assert trace.ops() == {"all_reduce": 1}
    assert found.seconds[0]["communication"] == pytest.approx(50e-6)


@pytest.mark.parametrize("pattern", ["(", "*", "[a"])
def test_a_wrong_pattern_is_refused(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ArgumentError, match="is no regular expression for the names of comm"):
        read(tmp_path, job("x"), pattern)
    assert main(["analyze", "--comm", pattern, str(tmp_path / "a.json")]) == 1
    assert "is no regular expression" in capsys.readouterr().err


UNKNOWN = "fabric_push<float>(float*)"
CALL = entry("cpu_op", "c10d::allreduce_", 1, 10, 60)
PARAMS = entry("cpu_op", "record_param_comms", 1, 12, 50, **{"Collective name": "allreduce"})
LAUNCH = entry("cuda_runtime", "cudaLaunchKernel", 1, 20, 5, correlation=77)


@pytest.mark.parametrize(
    "recorded",
    [
        [CALL, LAUNCH, entry("kernel", UNKNOWN, 9, 950, 400, correlation=77)],
        [CALL, PARAMS, LAUNCH, entry("kernel", UNKNOWN, 9, 950, 400, correlation=77)],
        [entry("user_annotation", "nccl:all_reduce", 1, 900, 400),
         entry("kernel", UNKNOWN, 9, 950, 400)],
        [entry("gpu_user_annotation", "nccl:all_reduce", 9, 950, 400),
         entry("kernel", UNKNOWN, 9, 950, 400)],
    ],
)  # fmt: skip
def test_an_unknown_kernel_during_a_recorded_collective_is_reported(
    recorded: list[dict[str, Any]], tmp_path: Path
) -> None:
    content = job("sm90_other_gemm", *recorded)
    trace, _ = read(tmp_path, content)
    (note,) = trace.notes
    assert note.startswith(f"The kernel '{UNKNOWN}' (1) runs during a recorded all_reduce, but")
    assert "dtlab analyze --comm 'fabric_push'" in note
    trace, _ = read(tmp_path, content, "fabric_push")
    assert trace.ops()["all_reduce"] + trace.ops()["collective"] >= 1
    assert not any("is not known" in note for note in trace.notes)


@pytest.mark.parametrize(
    "recorded",
    [
        [CALL, LAUNCH, entry("kernel", "ncclDevKernel_X", 9, 950, 400, correlation=77),
         entry("kernel", UNKNOWN, 7, 950, 400)],
        [CALL, LAUNCH, entry("kernel", "at::native::copy", 9, 950, 400, correlation=77)],
        [entry("gpu_user_annotation", "forward", 9, 950, 400),
         entry("kernel", UNKNOWN, 9, 950, 400)],
        [entry("gpu_user_annotation", "nccl:all_reduce", 9, 950, 400),
         entry("kernel", UNKNOWN, 9, 1450, 100)],
    ],
)  # fmt: skip
def test_compute_during_a_known_collective_is_not_reported(
    recorded: list[dict[str, Any]], tmp_path: Path
) -> None:
    trace, _ = read(tmp_path, job("sm90_other_gemm", *recorded))
    assert not any("is not known to communicate" in note for note in trace.notes)


# Jobs without kernels ----------------------------------------------------------------------------

MM = entry("cpu_op", "aten::mm", 1, 10, 1900)
ON_GPU: list[list[dict[str, Any]]] = [
    [MM, entry("cuda_runtime", "cudaLaunchKernel", 1, 20, 5)],
    [MM, entry("hip_runtime", "hipExtModuleLaunchKernel", 1, 20, 5)],
    [MM, entry("user_annotation", "nccl:all_reduce", 1, 30, 10)],
    [entry("cpu_op", "aten::cudnn_convolution", 1, 10, 1900)],
    [entry("cpu_op", "aten::_scaled_dot_product_flash_attention", 1, 10, 1900)],
]


@pytest.mark.parametrize("events", ON_GPU)
def test_the_note_on_a_gpu_job_without_kernels_says_how_to_record_them(
    events: list[dict[str, Any]], tmp_path: Path
) -> None:
    trace, found = read(tmp_path, {"traceEvents": events})
    assert trace.without_kernels == (0,)
    assert (found.verdict, found.causes) == ("kernels not recorded", ())
    assert found.message.startswith("Rank 0 uses a GPU or another device, but the trace has no k")
    assert "ProfilerActivity.CUDA" in found.advice[0]


@pytest.mark.parametrize("cat", ["mtia_ccp_events", "hpu_op", "cuda_profiler_range"])
def test_events_of_other_devices_are_named(cat: str, tmp_path: Path) -> None:
    _, found = read(tmp_path, {"traceEvents": [MM, entry(cat, "fused", 7, 20, 900)]})
    assert found.verdict == "kernels not recorded"
    assert f"events of the category '{cat}' are not read" in found.notes[0]


def test_a_job_on_nccl_without_kernels_and_its_file_of_to_chrome(tmp_path: Path) -> None:
    about = {"backend": "nccl", "rank": 0, "world_size": 1}
    trace, found = read(tmp_path, {"distributedInfo": about, "traceEvents": [MM]})
    assert found.verdict == "kernels not recorded"
    trace.to_chrome(tmp_path / "own.json")
    again = diagnose(Trace.from_chrome(tmp_path / "own.json"))
    assert again.verdict == "kernels not recorded"


@pytest.mark.parametrize(
    ("backend", "events"),
    [
        ("gloo", [MM]), ("nccl", [MM, entry("user_annotation", "gloo:all_reduce", 2, 5, 9)]),
        ("gloo", [MM, entry("cuda_runtime", "cudaGetDeviceCount", 1, 20, 5)]),
        ("gloo", [entry("cpu_op", "aten::_scaled_dot_product_flash_attention_for_cpu", 1, 0, 9)]),
        ("nccl", [MM, entry("kernel", "gemm", 7, 10, 900)]),
    ],
)  # fmt: skip
def test_a_job_on_cpus_needs_no_kernels(
    backend: str, events: list[dict[str, Any]], tmp_path: Path
) -> None:
    about = {"backend": backend, "rank": 0, "world_size": 1}
    trace, found = read(tmp_path, {"distributedInfo": about, "traceEvents": events})
    assert trace.without_kernels == ()
    assert found.verdict != "kernels not recorded"


def test_one_rank_without_kernels_of_two(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 1):
        content = job("sm90_other_gemm")
        content["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        if rank:
            content["traceEvents"] = [e for e in content["traceEvents"] if e["cat"] != "kernel"]
            content["traceEvents"].append(MM)
        paths.append(tmp_path / f"{rank}.json")
        paths[-1].write_text(json.dumps(content))
    found = diagnose(Trace.from_chrome(paths))
    assert found.verdict == "kernels not recorded"
    assert found.message.startswith("Rank 1 uses a GPU")


# Wording -----------------------------------------------------------------------------------------


def texts(found: Diagnosis) -> str:
    return "\n".join([str(found), found.message, *(cause.message for cause in found.causes)])


@pytest.mark.parametrize("kernels", [1, 5, 700])
def test_without_steps_no_time_is_given_per_step(kernels: int, tmp_path: Path) -> None:
    events = [entry("kernel", "gemm", 7, 1000 * number, 400) for number in range(kernels)]
    events.append(entry("kernel", "ncclDevKernel_AllReduce", 9, 1000 * kernels, 900))
    _, found = read(tmp_path, {"traceEvents": events})
    assert found.steps == 0
    assert "per step" not in texts(found) and "a step" not in texts(found)
    assert kernels == 1 or f"in {kernels} gaps of 600 µs" in texts(found)
    assert "all_reduce (1 on each rank" in texts(found) or kernels == 700


@pytest.mark.parametrize("counts", [(3, 4), (1, 1, 2), (10, 2, 1, 1), (0, 1)])
def test_gaps_are_whole_numbers(counts: tuple[int, ...], tmp_path: Path) -> None:
    events = []
    for step, count in enumerate(counts):
        at = 10_000 * step
        events.append(entry("user_annotation", f"ProfilerStep#{step}", 1, at, 10_000))
        edges = [at, *(at + 900 * (number + 1) for number in range(count)), at + 10_000]
        events += [entry("kernel", "gemm", 7, a, b - a - 500 * (b < at + 10_000))
                   for a, b in pairwise(edges)]  # fmt: skip
    _, found = read(tmp_path, {"traceEvents": events})
    written = [cause.message for cause in found.causes if cause.kind == "launch gaps"]
    assert "." not in "".join(message.split(" gap")[0].split("in ")[-1] for message in written)
