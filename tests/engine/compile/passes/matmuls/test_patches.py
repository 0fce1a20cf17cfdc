"""Convolutions over separate patches, computed as matmuls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flodl.engine.compile.passes.matmuls.patches import PatchesAsMatmuls

from ..rewritten_programs import compiled_like_eager, counted

pytestmark = [
    pytest.mark.usefixtures("passes_on_cpu"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),  # torch's compiler
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),
]
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def num_left(layer: nn.Module, images: Tensor, *, autocast: bool = True, code: bool = False) -> list[int]:
    """Compile a layer and compare it with eager mode; return how many convolutions it kept."""
    change, counts = counted(PatchesAsMatmuls, torch.conv2d)
    compiled_like_eager(layer, images, change, autocast=autocast, tolerance=2e-2, code=code)
    return counts


def images(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("bias", [True, False])
def test_separate_patches_are_multiplied(memory_format: torch.memory_format, bias: bool) -> None:
    layer = nn.Conv2d(3, 8, 4, stride=4, bias=bias).to(memory_format=memory_format)
    inputs = images(2, 3, 8, 12).to(memory_format=memory_format)
    assert num_left(layer, inputs, code=bias) == [0]


def test_patches_may_be_wide() -> None:
    assert num_left(nn.Conv2d(3, 8, (2, 3), stride=(2, 3)), images(2, 3, 8, 12)) == [0]


def test_the_result_can_be_flattened_as_in_a_vision_transformer() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 4, stride=4)

        def forward(self, images: Tensor) -> Tensor:
            return self.conv(images).view(2, 8, -1).permute(0, 2, 1)

    assert num_left(Patches(), images(2, 3, 8, 12)) == [0]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 3, stride=2),
        nn.Conv2d(4, 8, 2, stride=2, padding=1),
        nn.Conv2d(4, 8, 2, stride=2, dilation=2),
        nn.Conv2d(4, 8, 2, stride=2, groups=2),
        nn.Conv2d(4, 8, 5, stride=5),
        nn.Conv2d(4, 8, 1),
        nn.Conv2d(4, 8, 2, stride=2, padding="valid"),
    ],
    ids=str,
)
def test_other_convolutions_are_kept(layer: nn.Module) -> None:
    assert num_left(layer, images(2, 4, 8, 12)) == [1]


def test_convolutions_in_float32_are_kept() -> None:
    assert num_left(nn.Conv2d(3, 8, 4, stride=4), images(2, 3, 8, 12), autocast=False) == [1]
