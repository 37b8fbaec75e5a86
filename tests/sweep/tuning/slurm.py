"""A stand-in for Slurm: jobs outlive who submits them, the first run of each dies and is queued again where `requeue` exists.

python slurm.py FOLDER sbatch|squeue|sacct|scancel ARGUMENTS...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.waiting import until

TOOLS = ("sbatch", "squeue", "sacct", "scancel")


def put(path: Path, state: str) -> None:
    """Write a state, whole."""
    path.with_suffix(".new").write_text(state)
    path.with_suffix(".new").replace(path)


def job(folder: Path, number: str, output: str, *command: str) -> None:
    """Run a job to its end."""
    state, tries = folder / f"{number}.state", 2 if (folder / "requeue").exists() else 1
    (folder / f"{number}.pid").write_text(str(os.getpid()))
    for left in reversed(range(tries)):
        put(state, "RUNNING")
        with Path(output).open("ab") as log, (folder / "ran").open("a") as ran:
            ran.write(f"{number}{' died' * (left > 0)}\n")
            ran.flush()
            if left:
                put(state, "PENDING")
                until((folder / "again").exists)
                continue
            code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    put(state, "FAILED" if code else "COMPLETED")


def sbatch(folder: Path, *command: str) -> None:
    """Submit, and wait if the environment says so."""
    number = str(len([*folder.glob("*.state")]) + 1)
    put(folder / f"{number}.state", "PENDING")
    words = [
        sys.executable,
        "-m",
        "tests.sweep.tuning.slurm",
        str(folder),
        "job",
        number,
        os.environ["SBATCH_OUTPUT"],
        *command,
    ]
    quiet = subprocess.DEVNULL
    subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
    print(f"Submitted batch job {number}", flush=True)
    if os.environ.get("SBATCH_WAIT") and not (folder / "nowait").exists():
        until(lambda: (folder / f"{number}.state").read_text() not in ("PENDING", "RUNNING"))


def main(folder: Path, tool: str, *words: str) -> int:
    """One of the tools."""
    if tool == "sbatch":
        sbatch(folder, *words)
    elif tool == "job":
        job(folder, *words)
    else:
        number = words[words.index("-j") + 1] if "-j" in words else words[-1]
        state = (folder / f"{number}.state").read_text()
        if tool == "scancel":
            with suppress(ProcessLookupError):
                os.killpg(int((folder / f"{number}.pid").read_text()), signal.SIGKILL)
            put(folder / f"{number}.state", "CANCELLED")
        elif tool == "sacct" or state in ("PENDING", "RUNNING"):
            print(state)
        else:
            print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
            return 1
    return 0


def install(folder: Path) -> Path:
    """Write the tools; returns the folder for the PATH."""
    (folder / "bin").mkdir(parents=True)
    for tool in TOOLS:
        path = folder / "bin" / tool
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.sweep.tuning.slurm {folder} {tool} "$@"\n')
        path.chmod(0o755)
    return folder / "bin"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
