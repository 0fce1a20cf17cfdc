"""Well-known datasets: parsed, verified, and downloaded on request."""

from .cifar import cifar10
from .digits import digits
from .idx import read_idx
from .mnist import fashion_mnist, mnist
from .shakespeare import tiny_shakespeare

__all__ = ["cifar10", "digits", "fashion_mnist", "mnist", "read_idx", "tiny_shakespeare"]
