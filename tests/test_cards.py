"""Cards and links against the figures of their datasheets, and the learner's own card."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dtlab import predict
from dtlab.predict import hardware
from dtlab.predict.hardware import CARDS, LINKS, Card, Link, card_from

GB = 1e9
TABLE = """
    A100   80   85.9   2.0   312   300  25
    H100   80   85.5   3.35  989   450  50
    H200   141  150.8  4.8   989   450  50
    B200   180  192.3  8.0   2250  900  50
    B300   288  288.0  8.0   2250  900  100
"""  # vendor's GB; reported, 1e9 bytes; HBM TB/s; dense bf16 TFLOP/s; NVLink and adapter, GB/s


@pytest.mark.parametrize("line", TABLE.strip().splitlines())
def test_every_card_of_the_table(line: str) -> None:
    model, sold, *numbers = line.split()
    (card,) = (card for name, card in CARDS.items() if name.split()[0] == model)
    assert card.name in CARDS and card.source
    assert card.hbm_bandwidth and card.bf16_flops and card.nvlink and card.nic
    found = [
        round(card.memory / GB, 1), round(card.hbm_bandwidth / 1e12, 2), card.bf16_flops / 1e12,
        card.nvlink / GB, card.nic / GB,
    ]  # fmt: skip
    assert found == pytest.approx([float(each) for each in numbers], rel=0.025)
    assert found[0] == float(numbers[0])
    assert card.memory >= float(sold) * GB


def test_memory_is_bytes_and_not_the_gb_of_the_box() -> None:
    assert CARDS["A100 SXM 80 GB"].memory == 81920 * 2**20
    assert CARDS["H100 SXM"].memory == 81559 * 2**20 == 85_520_809_984
    assert str(CARDS["H100 SXM"]) == "H100 SXM, 85.52 GB"
    assert "not read from a driver" in CARDS["B300 SXM"].source
    assert len(CARDS) == len(TABLE.strip().splitlines())


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("NVLink 3", Link(2e-6, 300 * GB)),
        ("NVLink 4", Link(2e-6, 450 * GB)),
        ("InfiniBand HDR", Link(5e-6, 25 * GB)),
        ("InfiniBand NDR", Link(5e-6, 50 * GB)),
        ("PCIe 4", Link(3e-6, 31 * GB)),
        ("PCIe 5", Link(3e-6, 63 * GB)),
        ("10 Gb Ethernet", Link(30e-6, 1.25 * GB)),
        ("100 Gb Ethernet", Link(30e-6, 12.5 * GB)),
    ],
)
def test_every_link(name: str, link: Link) -> None:
    assert LINKS[name] == link


def test_links_are_the_clusters_and_the_cards() -> None:
    assert (LINKS["NVLink 3"], LINKS["InfiniBand HDR"]) == (
        predict.Cluster().intra, predict.Cluster().inter,
    )  # fmt: skip
    for card, inside, between in [
        ("A100 SXM 80 GB", "NVLink 3", "InfiniBand HDR"),
        ("H100 SXM", "NVLink 4", "InfiniBand NDR"),
        ("H200 SXM", "NVLink 4", "InfiniBand NDR"),
    ]:
        assert CARDS[card].nvlink == LINKS[inside].bandwidth
        assert CARDS[card].nic == LINKS[between].bandwidth
    assert predict.CARDS is hardware.CARDS is CARDS and predict.LINKS is LINKS


# ------------------------------------------------------------------------ the learner's card


def reported(name: str, memory: int, clock: int = 0, width: int = 0) -> SimpleNamespace:
    """What torch.cuda.get_device_properties returns, as far as it is read."""
    return SimpleNamespace(
        name=name, total_memory=memory, memory_clock_rate=clock, memory_bus_width=width
    )


@pytest.mark.parametrize(
    ("name", "memory", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", 84_987_740_160, "A100 SXM 80 GB"),
        ("NVIDIA H100 80GB HBM3", 85_029_158_912, "H100 SXM"),
        ("NVIDIA H200", 150_109_880_320, "H200 SXM"),
        ("NVIDIA B200", 191_503_138_816, "B200 SXM"),
        ("NVIDIA B300 SXM6 AC", 287_400_000_000, "B300 SXM"),
    ],
)
def test_a_known_card_is_known(name: str, memory: int, model: str) -> None:
    card, known = card_from(reported(name, memory)), CARDS[model]
    assert (card.name, card.memory) == (name, memory)
    assert (card.hbm_bandwidth, card.bf16_flops) == (known.hbm_bandwidth, known.bf16_flops)
    assert (card.nvlink, card.nic) == (known.nvlink, known.nic)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("NVIDIA A100-SXM4-40GB", 42_298_834_944),
        ("NVIDIA A100 80GB PCIe", 84_987_740_160),
        ("NVIDIA H100 NVL", 99_900_000_000),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10_100_000_000),
        ("NVIDIA GH200 480GB", 150_000_000_000),
        ("NVIDIA GeForce RTX 4090", 25_393_692_672),
    ],
)
def test_another_card_has_its_memory_and_what_follows_from_its_clock(
    name: str, memory: int
) -> None:
    card = card_from(reported(name, memory, clock=1_593_000, width=5120))
    assert (card.name, card.memory) == (name, memory)
    assert card.hbm_bandwidth == pytest.approx(2.039e12, rel=1e-3)
    assert card.bf16_flops is card.nvlink is card.nic is None
    assert card_from(reported(name, memory)).hbm_bandwidth is None
    assert card_from(SimpleNamespace(name=name, total_memory=memory)) == Card(
        name, memory, source="torch.cuda.get_device_properties"
    )


@pytest.mark.parametrize("properties", [None, "H100", SimpleNamespace(name="H100"),
                                        reported("H100", 0)])  # fmt: skip
def test_what_is_no_card_is_refused(properties: object) -> None:
    with pytest.raises(ValueError, match=r"of torch.cuda.get_device_properties\(0\), with"):
        card_from(properties)


@pytest.mark.gpu
def test_the_card_of_this_machine() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    properties = torch.cuda.get_device_properties(0)
    card = card_from(properties)
    assert card.memory == properties.total_memory
    assert card.hbm_bandwidth
