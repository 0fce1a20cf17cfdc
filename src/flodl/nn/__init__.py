"""What torch.nn lacks: focal and balancing losses, initializers, Gaussian blur, a reshape, sums of refs."""

from .balance import load_balancing_loss
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
    "load_balancing_loss",
    "trunc_normal_",
    "uniform_bias_",
]
