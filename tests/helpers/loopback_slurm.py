"""A real SLURM of one machine, which is this one: its daemons as processes of ours, on ports of the loopback.

It keeps everything below a folder of its own, so that it needs no root and leaves a SLURM of the machine's alone.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
"""On Debian, the packages munge and slurm-wlm."""

CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
KillWait=5
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Nothing confines a job to its cores, as on many clusters: `task/none`."""


def missing() -> list[str]:
    """The programs of SLURM that this machine lacks."""
    return [name for name in (*DAEMONS, "sbatch", "scancel", "scontrol", "sinfo", "srun") if _program(name) is None]


@contextmanager
def loopback_slurm():
    """Start the daemons, wait until the machine is idle, and end them; inside, SLURM's commands speak to them."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, _daemons(Path(folder)):
        yield  # a test's own folder has too long a path for a socket


@contextmanager
def _daemons(folder: Path):
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    conf = folder / "slurm.conf"
    host, user = socket.gethostname().partition(".")[0], subprocess.check_output(["id", "-un"], text=True).strip()
    cpus = len(os.sched_getaffinity(0))
    conf.write_text(CONFIGURATION.format(host=host, user=user, folder=folder, ports=_free_ports(2), cpus=cpus))
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(conf)
    running = []
    try:
        for name, *words in (
            ("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files),
            ("slurmctld", "-D", "-f", str(conf)),
            ("slurmd", "-D", "-f", str(conf)),
        ):
            with open(folder / f"{name}.txt", "wb") as log:
                running.append(subprocess.Popen([_program(name), *words], stdout=log, stderr=log))
        _wait_until_idle(folder, running)
        yield
        subprocess.run(["scancel", "--user", user], check=True)
        _wait_until_idle(folder, running)  # a job outlives the daemons
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(60)
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before


def _program(name: str) -> str | None:
    """Find a program, also in the folders of daemons, which an ordinary user's PATH lacks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin")


def _free_ports(number: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in taken]
    for server in taken:
        server.close()
    return ports


def _wait_until_idle(folder: Path, running: list[subprocess.Popen], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True).stdout.strip() != "idle":
        if time.monotonic() > end or any(process.poll() is not None for process in running):
            logs = "".join(f"{file.name}:\n{file.read_text()}" for file in sorted(folder.glob("*.txt")))
            raise AssertionError(f"SLURM is not idle:\n{logs}")
        time.sleep(0.2)
