from torch import nn


class Pictured(nn.Module): ...
