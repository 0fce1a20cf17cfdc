"""Completion in bash, zsh and fish: the scripts, and the words that they exchange with a program."""

from .scripts import SCRIPTS
from .words import install_completion, script_for

__all__ = ["SCRIPTS", "install_completion", "script_for"]
