"""Other destinations for the events of a run: files in common formats, and experiment trackers.

A sink receives events one by one; wrapped in `Guarded`, it can fail or block without slowing down training.
"""

from .csv_table import Csv
from .guarded import Guarded
from .json_lines import JsonLines
from .mlflow_run import MLflow
from .sink import Sink
from .tensorboard import TensorBoard
from .trackio_run import Trackio
from .wandb_run import WandB

__all__ = ["Csv", "Guarded", "JsonLines", "MLflow", "Sink", "TensorBoard", "Trackio", "WandB"]
