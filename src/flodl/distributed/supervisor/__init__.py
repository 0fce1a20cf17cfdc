"""Starting ranks, watching them, and carrying out what the coordinator decides."""

from .journal_file import JournalFile, Recovery, read_journal
from .launcher import Launcher, LocalLauncher, RankProcess, RankSpec
from .ledger import CommitReport, Ledger, RankTotals
from .outcome import Outcome, SaveReport
from .run_log import RunLog, read_log
from .settings import SupervisorSettings
from .supervisor import Supervisor, supervise

__all__ = [
    "CommitReport",
    "JournalFile",
    "Launcher",
    "Ledger",
    "LocalLauncher",
    "Outcome",
    "RankProcess",
    "RankSpec",
    "RankTotals",
    "Recovery",
    "RunLog",
    "SaveReport",
    "Supervisor",
    "SupervisorSettings",
    "read_journal",
    "read_log",
    "supervise",
]
