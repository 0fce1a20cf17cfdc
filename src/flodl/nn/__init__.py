"""What torch.nn lacks: focal loss, two initializers, Gaussian blur, a fixed reshape, a sum with refs."""

from .blur import GaussianBlur, gaussian_blur_2d
from .focal import FocalLoss, focal_loss
from .init import trunc_normal_, uniform_bias_
from .layers import Reshape, StateAdd

__all__ = [
    "FocalLoss",
    "GaussianBlur",
    "Reshape",
    "StateAdd",
    "focal_loss",
    "gaussian_blur_2d",
    "trunc_normal_",
    "uniform_bias_",
]
