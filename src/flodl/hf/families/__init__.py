"""One folder per family: `model.py` builds the graph, `keys.py` names its parameters in checkpoints."""
