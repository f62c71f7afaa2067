"""A cluster of one machine, on its loopback: munge, slurmctld and slurmd, while it is used."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")

_SETTINGS = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def missing() -> str:
    """Why there can be no cluster here; empty if there can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    lacking = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return f"SLURM's {', '.join(lacking)} are not installed (./dev launchers installs them)"
    return "" if os.geteuid() == 0 else "SLURM's daemons want to be root"


@contextmanager
def cluster(folder: Path, ports: tuple[int, int]) -> Iterator[dict[str, str]]:
    """The environment in which srun finds it."""
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    settings = folder / "slurm.conf"
    settings.write_text(_SETTINGS.format(folder=folder, ports=ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    environment = {**os.environ, "SLURM_CONF": str(settings), "PATH": path}
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    with ExitStack() as stack:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]):
            log = stack.enter_context((folder / f"{command[0]}.out").open("w"))
            daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
            time.sleep(0.5)
        _until_idle(environment, folder)
        yield environment


def _until_idle(environment: dict[str, str], folder: Path) -> None:
    for _ in range(120):
        asked = ["sinfo", "--noheader", "--format=%T"]
        state = subprocess.run(asked, env=environment, capture_output=True, text=True).stdout
        if state.strip() == "idle":
            return
        time.sleep(0.25)
    logs = "\n".join(log.read_text()[-2000:] for log in folder.glob("*.out"))
    raise RuntimeError(f"the cluster does not come up: {state}\n{logs}")
