"""Where else a run can be written: files of common formats, and the trackers that people already use.

A sink takes events one by one; behind `Guarded` it can fail or block without holding up training.
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
