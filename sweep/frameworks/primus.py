"""Words of Primus: sections of its experiments, and where its own configurations lie."""

import re

NAME, PAGE = "Primus", "primus"
TRAINERS = ("pre_trainer", "post_trainer", "sft_trainer")
SIGN = re.compile(rf"^\s+(?:{'|'.join(TRAINERS)}):\s*$", re.MULTILINE)
DEFAULTED = re.compile(r"\$\{\w+:-?([^{}]*)\}")
"""A variable of the shell with the value that it has where it is not set."""
CONFIGS = "primus/configs"
"""Where its own configurations lie, those of trainers and of models in folders for each framework."""
