"""The configuration files of a one-host cluster of fake A100 nodes, for SLURM 22.05."""

import getpass
import socket
from pathlib import Path
from typing import NamedTuple

ACCOUNT = "lab"
NODES = 4
PARTITIONS = """\
PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-00:00:00 PriorityTier=1 GraceTime=5 State=UP
PartitionName=urgent Nodes=ALL MaxTime=1-00:00:00 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=short Nodes=ALL MaxTime=0:02:00 PriorityTier=1 PreemptMode=OFF State=UP
"""
"""`urgent` preempts jobs of `gpu`, which are requeued after a signal and 5 seconds."""


class Ports(NamedTuple):
    """Ports on the loopback; the nodes' begin at `node`."""

    ctld: int
    dbd: int
    sql: int
    node: int


def slurm_conf(base: Path, ports: Ports) -> str:
    host, user = socket.gethostname().partition(".")[0], getpass.getuser()
    last = NODES - 1
    return f"""\
ClusterName=orch
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports.ctld}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={base}/munge.sock,cred_expire=5
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/pid/slurmctld
SlurmdPidFile={base}/pid/slurmd-%n
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd-%n.log
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=15
MessageTimeout=10
KillWait=3
InactiveLimit=0
MinJobAge=300
MaxArraySize=1001
MaxJobCount=20000
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports.dbd}
AccountingStoragePass={base}/munge.sock
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
NodeName=a100-[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 \
Port=[{ports.node}-{ports.node + last}] CPUs=8 RealMemory=8000 Gres=gpu:a100:4 State=UNKNOWN
{PARTITIONS}"""


def gres_conf(devices: list[Path]) -> str:
    """Four GPUs a node; the devices only have to be devices."""
    return "".join(
        f"NodeName=a100-[0-{NODES - 1}] Name=gpu Type=a100 File={device}\n" for device in devices
    )


def slurmdbd_conf(base: Path, ports: Ports, password: str) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={base}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports.dbd}
SlurmUser={getpass.getuser()}
LogFile={base}/log/slurmdbd.log
PidFile={base}/pid/slurmdbd
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={ports.sql}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct
"""


def database_sql(password: str) -> str:
    """Run by the database at each start."""
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_acct;\n"
        f"CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
        "GRANT ALL ON slurm_acct.* TO 'slurm'@'127.0.0.1';\n"
    )
