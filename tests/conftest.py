"""No test looks for a newer flodl, or writes into the settings of whoever runs it, by accident."""

import os

os.environ["FDL_NO_UPDATE_CHECK"] = "1"
