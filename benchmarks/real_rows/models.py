"""Models that other people wrote, with batches and losses as in their own examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Model:
    """A model, a batch on the CPU, and the loss. `make` and `batch` take `quick`, which makes them tiny."""

    make: Callable[[bool], nn.Module]
    batch: Callable[[bool], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    precision: Literal["bf16", "fp32"] = "bf16"
    is_transformer: bool = True


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that the models of transformers compute themselves."""
    loss: Tensor = model(**batch).loss
    return loss


def classification(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch["images"]), batch["labels"])


def denoising(model: nn.Module, batch: Batch) -> Tensor:
    return functional.mse_loss(model(batch["images"], batch["times"]), batch["noise"])


def tokens(rows: int, length: int, vocabulary: int, *, has_labels: bool = True) -> Callable[[bool], Batch]:
    """Random token ids; the labels of a language model are its inputs."""

    def make(quick: bool) -> Batch:
        source = torch.Generator().manual_seed(0)
        shape = (2, 16) if quick else (rows, length)
        ids = torch.randint(2, 100 if quick else vocabulary, shape, generator=source)
        return {"input_ids": ids, **({"labels": ids.clone()} if has_labels else {})}

    return make


def labelled_tokens(rows: int, length: int, vocabulary: int) -> Callable[[bool], Batch]:
    """Padded sentences with one label each."""

    def make(quick: bool) -> Batch:
        found = tokens(rows, length, vocabulary, has_labels=False)(quick)
        mask = torch.ones_like(found["input_ids"])
        mask[1::2, mask.shape[1] * 3 // 4 :] = 0
        labels = torch.arange(len(mask)) % 2
        return {"input_ids": found["input_ids"] * mask, "attention_mask": mask, "labels": labels}

    return make


def images(rows: int, size: int, num_labels: int = 1000) -> Callable[[bool], Batch]:
    def make(quick: bool) -> Batch:
        source = torch.Generator().manual_seed(0)
        shape = (2, 3, 64, 64) if quick else (rows, 3, size, size)
        labels = torch.randint(num_labels, (shape[0],), generator=source)
        return {"images": torch.randn(shape, generator=source), "labels": labels}

    return make


def noisy_images(quick: bool) -> Batch:
    source = torch.Generator().manual_seed(0)
    shape = (2 if quick else 64, 3, 32, 32)
    return {
        "images": torch.randn(shape, generator=source),
        "times": torch.rand(shape[0], generator=source),
        "noise": torch.randn(shape, generator=source),
    }


def pairs_of_tokens(quick: bool) -> Batch:
    source = torch.Generator().manual_seed(0)
    rows, length = (2, 16) if quick else (16, 256)
    high = 100 if quick else 32_000
    return {
        "input_ids": torch.randint(2, high, (rows, length), generator=source),
        "labels": torch.randint(2, high, (rows, length // 2), generator=source),
    }


TINY: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def gpt2(quick: bool) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_embd=32, n_layer=1, n_head=2) if quick else GPT2Config()
    return GPT2LMHeadModel(config)


def llama(quick: bool) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    size: dict[str, Any] = {
        "vocab_size": 32_000,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "intermediate_size": 2048,
    }
    return LlamaForCausalLM(LlamaConfig(**(size | (TINY | {"num_key_value_heads": 1} if quick else {}))))


def bert(quick: bool) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**(TINY if quick else {})))


def deberta(quick: bool) -> nn.Module:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    size: dict[str, Any] = {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "num_hidden_layers": 6,
    }
    v3 = {
        "relative_attention": True,
        "position_buckets": 256,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        # Otherwise the step waits for the device to count the labels.
        "problem_type": "single_label_classification",
    }
    return DebertaV2ForSequenceClassification(DebertaV2Config(**(size | v3 | (TINY if quick else {}))))


def t5(quick: bool) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    size: dict[str, Any] = {"d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 6, "num_heads": 8}
    small = {"vocab_size": 100, "d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(**(small if quick else size), decoder_start_token_id=0)
    return T5ForConditionalGeneration(config)


def torchvision_model(
    name: str, quick_name: str | None = None, **settings: Any
) -> Callable[[bool], nn.Module]:
    def make(quick: bool) -> nn.Module:
        from torchvision import models  # type: ignore[import-not-found, import-untyped, unused-ignore]

        if quick and name.startswith("vit"):
            return models.VisionTransformer(64, 16, 1, 2, 32, 64, num_classes=1000)  # type: ignore[no-any-return, unused-ignore]
        found: nn.Module = models.get_model(quick_name if quick and quick_name else name, **settings)
        return found

    return make


class DoubleConv(nn.Module):
    """Two convolutions with group norm, shifted by the embedding of the time."""

    def __init__(self, before: int, after: int, width: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(before, after, 3, padding=1),
            nn.Conv2d(after, after, 3, padding=1),
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, after) for _ in range(2))
        self.shift = nn.Linear(width, after)

    def forward(self, hidden: Tensor, time: Tensor) -> Tensor:
        hidden = functional.silu(self.norms[0](self.first(hidden)))
        hidden = hidden + self.shift(time)[:, :, None, None]
        return functional.silu(self.norms[1](self.second(hidden)))


class UNet(nn.Module):
    """A small diffusion model for images of 32×32, as in tutorials."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        time = 4 * width
        self.time = nn.Sequential(nn.Linear(1, time), nn.SiLU(), nn.Linear(time, time))
        self.down = nn.ModuleList(
            DoubleConv(*sizes, time) for sizes in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        )
        self.up = nn.ModuleList(
            DoubleConv(*sizes, time) for sizes in ((6 * width, 2 * width), (3 * width, width))
        )
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        time = self.time(times[:, None])
        first = self.down[0](images, time)
        second = self.down[1](functional.max_pool2d(first, 2), time)
        third = self.down[2](functional.max_pool2d(second, 2), time)
        hidden = self.up[0](torch.cat([functional.interpolate(third, scale_factor=2), second], 1), time)
        hidden = self.up[1](torch.cat([functional.interpolate(hidden, scale_factor=2), first], 1), time)
        result: Tensor = self.out(hidden)
        return result


MODELS = {
    "GPT-2 124M, 8×512": Model(gpt2, tokens(8, 512, 50_257), own_loss),
    "ViT-B/16, batch 32": Model(torchvision_model("vit_b_16"), images(32, 224), classification),
    "Llama 110M, 8×512": Model(llama, tokens(8, 512, 32_000), own_loss),
    "BERT-base, 32×128": Model(bert, labelled_tokens(32, 128, 30_522), own_loss),
    "DeBERTa-v2, 6 layers, 16×256": Model(deberta, labelled_tokens(16, 256, 128_100), own_loss),
    "T5-small, 16×256": Model(t5, pairs_of_tokens, own_loss),
    "ResNet-50, batch 32": Model(
        torchvision_model("resnet50", "resnet18"), images(32, 224), classification, is_transformer=False
    ),
    "ConvNeXt-T, batch 32": Model(
        torchvision_model("convnext_tiny"), images(32, 224), classification, is_transformer=False
    ),
    "UNet 32×32, batch 64": Model(
        lambda quick: UNet(16 if quick else 64), noisy_images, denoising, is_transformer=False
    ),
    "MobileNetV3-S, batch 64": Model(
        torchvision_model("mobilenet_v3_small"), images(64, 224), classification, "fp32", is_transformer=False
    ),
}
