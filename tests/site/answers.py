"""What the commands of other clusters print: SLURM 23.11, typed GPUs, limits, a drained node."""

CONFIG = {
    "ClusterName": "big",
    "SLURM_VERSION": "23.11.4",
    "MaxArraySize": "10001",
    "MaxJobCount": "50000",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "PreemptMode": "REQUEUE",
    "JobRequeue": "1",
}

PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED State=UP TotalNodes=2
PartitionName=a100 AllowGroups=ALL AllowAccounts=physics,ml AllowQos=normal,long Default=NO MaxNodes=2 MaxTime=1-12:00:00 State=UP TotalNodes=3
PartitionName=old AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL Default=NO MaxNodes=1 MaxTime=04:00:00 State=DRAIN TotalNodes=1
"""  # noqa: E501

NODES = """\
NodeName=c1 Arch=x86_64 CPUAlloc=0 CPUEfctv=62 CPUTot=64 AvailableFeatures=avx512 ActiveFeatures=avx512 Gres=(null) NodeAddr=c1 OS=Linux 5.14.0-362 #1 SMP PREEMPT_DYNAMIC Tue RealMemory=256000 State=IDLE Partitions=cpu BootTime=2026-01-01T00:00:00
NodeName=g1 Arch=x86_64 CPUAlloc=0 CPUEfctv=128 CPUTot=128 AvailableFeatures=nvlink,ib ActiveFeatures=nvlink,ib Gres=gpu:a100:4(S:0-1),shard:16 RealMemory=1024000 State=MIXED Partitions=a100 Comment=hello = world
NodeName=g2 CPUTot=128 AvailableFeatures=nvlink,ib Gres=gpu:a100:4(S:0-1) RealMemory=1024000 State=IDLE+DRAIN Partitions=a100 Reason=bad gpu [root@2026]
NodeName=g3 CPUTot=32 AvailableFeatures=(null) Gres=gpu:v100:8 RealMemory=512000 State=ALLOCATED Partitions=a100,old
"""  # noqa: E501

RIGHTS = "ml|200\nphysics|\n"
QOS = "normal\nlong\n"
