"""SLURM's words as sentences: which field of the site file to change, and whether to ask again.

The phrases are slurm_strerror's (src/common/slurm_errno.c, 22.05 to 24.11) and those sbatch, srun
and scontrol print themselves; the reasons are squeue's (job_reason_string).
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.errors import did_you_mean


class Told(NamedTuple):
    """One refusal, for a person."""

    sentence: str
    field: str = ""
    """The field to change, dotted (`site.options.partition`); empty where none is at fault."""
    passing: bool = False
    """The scheduler is away or busy: ask again later, nothing is wrong with the request."""


class _Rule(NamedTuple):
    phrase: str
    says: str
    """May use {value}: what the site file says in that field."""
    field: str = ""
    passing: bool = False


_AWAY = "the scheduler does not answer ({line}); nothing is lost, it is asked again"
_RULES = tuple(_Rule(*rule) for rule in (
    # away or busy
    ("Unable to contact slurm controller", _AWAY, "", True),
    ("slurm controller not responding", _AWAY, "", True),
    ("Unable to connect to .*slurm", _AWAY, "", True),
    ("Socket timed out", _AWAY, "", True),
    ("Connection (refused|timed out|reset)", _AWAY, "", True),
    ("backup controller in standby", _AWAY, "", True),
    ("temporarily unable to accept job", _AWAY, "", True),
    ("Resource temporarily unavailable", _AWAY, "", True),
    ("Zero Bytes were transmitted", _AWAY, "", True),
    ("Problem talking to the database", ("the accounting database does not answer; it is asked "
     "again, and the queue is asked meanwhile"), "", True),
    ("munge|Invalid authentication credential|authentication plugin",
     ("munge does not vouch for this user on this machine ({line}); ask the administrator whether "
     "munged runs here and the clocks agree"), "", True),
    # what was asked for
    (("Invalid account or account/partition|account.*not permitted|User's group not permitted|"
     "Invalid account"), "the account {value} may not submit to this partition", "account"),
    ("invalid partition|Invalid partition", "there is no partition {value}", "partition"),
    (("Required partition not available|partition configuration not available|partition .*(down|"
     "inactive)"), "the partition {value} takes no jobs at present", "partition"),
    ("Invalid qos", ("the quality of service {value} does not exist or is not allowed for this "
     "account"), "qos"),
    ("(Job|user).*violates accounting/QOS policy|QOSMaxSubmit|AssocMaxSubmit|AssocGrpSubmit",
     ("the cluster's policy refuses the job: too many jobs submitted, or a size or time beyond "
     "what the account and its QOS allow"), "qos"),
    ("Requested time limit is invalid|Invalid --?time|Invalid time limit|time limit.*exceeds",
     "the time limit {value} is longer than the partition allows, or cannot be read",
     "time_limit_hours"),
    ("Invalid generic resource|invalid .*gres|--gres|invalid --gpus|gpu.*specification",
     "no node has the GPUs asked for ({value})", "gres"),
    ("Invalid job array", "the array has more elements, or higher indices, than MaxArraySize",
     "max_array_size"),
    ("Invalid feature specification|invalid constraint", "no node has the feature {value}",
     "constraint"),
    ("Invalid node name|Invalid nodelist|invalid host ?list", ("a node named to be excluded does "
     "not exist ({value})"), "exclude"),
    ("Invalid --mem|Memory (required|specification)", ("no node of the partition has that much "
     "memory ({value})"), "memory_gib"),
    ("Node count specification invalid|More nodes requested|Invalid node count",
     "the partition does not have that many nodes", "partition"),
    ("CPU count per node|CPU count specification|More processors requested|Invalid --?cpus",
     "no node of the partition has that many CPUs ({value})", "cpus_per_gpu"),
    ("Invalid license", "the license asked for does not exist ({value})", "extra"),
    ("Invalid wckey", "the cluster wants a wckey it knows; give one as an extra flag", "extra"),
    ("[Rr]eservation", "the reservation asked for is not valid for this user or time ({value})",
     "reservation"),
    ("unrecognized option|invalid option|ambiguous option", ("this SLURM does not know a flag: "
     "{line}"), "extra"),
    ("Requested node configuration is not available", ("no node of the partition has what is "
     "asked of one node together: GPUs, CPUs, memory and features"), "gres"),
    ("Access/permission denied|Permission denied", ("SLURM or the file system denies this user: "
     "{line}"), ""),
    ("Unable to open file|couldn't chdir|error opening|Unable to create", ("the job's folder "
     "cannot be reached: {line}. It must lie on a file system that every node sees"), "runs_dir"),
    ("Pathname of a file.*too long|script.*too large|Argument list too long",
     "what was submitted is too large for SLURM: {line}", ""),
    ("job_submit|lua", "the cluster's own submission filter refuses the job: {line}", ""),
))  # fmt: skip

_REASONS: Mapping[str, tuple[str, str]] = {
    "PartitionTimeLimit": (("the time limit {value} is longer than the partition allows, so the "
                            "job would wait for ever"), "time_limit_hours"),
    "PartitionConfig": (("the partition {value} cannot give what is asked for (time or number of "
                        "nodes), so the job would wait for ever"), "partition"),
    "PartitionNodeLimit": ("the job asks for more, or fewer, nodes than the partition allows",
                           "partition"),
    "BadConstraints": ("no node meets what is asked for together", "gres"),
    "DependencyNeverSatisfied": ("the job it waits for failed, so it would wait for ever", ""),
    "JobHeldUser": ("the job is held by its user: `scontrol release` lets it go", ""),
    "JobHeldAdmin": ("the job is held by an administrator, or by SLURM after many requeues", ""),
    "AccountNotAllowed": ("the account {value} may not use this partition", "account"),
    "QOSNotAllowed": ("the quality of service {value} may not use this partition", "qos"),
    "InvalidAccount": ("the account {value} does not exist any more", "account"),
    "InvalidQOS": ("the quality of service {value} does not exist any more", "qos"),
    "QOSMaxWallDurationPerJobLimit": ("the time limit {value} is longer than its QOS allows",
                                      "time_limit_hours"),
    "AssocMaxWallDurationPerJobLimit": ("the time limit {value} is longer than the account allows",
                                        "time_limit_hours"),
    "QOSMaxGRESPerJob": ("one job asks for more GPUs than its QOS allows", "qos"),
    "AssocMaxGRESPerJob": ("one job asks for more GPUs than the account allows", "account"),
    "QOSUsageThreshold": ("the QOS has used up its share", "qos"),
    "AssocGrpGRESMinutes": ("the account has used up its GPU time", "account"),
    "QOSMaxNodePerJobLimit": ("one job asks for more nodes than its QOS allows", "qos"),
    "AssocMaxNodePerJobLimit": ("one job asks for more nodes than the account allows", "account"),
    "QOSMaxCpuPerJobLimit": ("one job asks for more CPUs than its QOS allows", "qos"),
    "AssocMaxCpuPerJobLimit": ("one job asks for more CPUs than the account allows", "account"),
    "QOSMaxMemoryPerJob": ("one job asks for more memory than its QOS allows", "memory_gib"),
    "AssocMaxMemPerJob": ("one job asks for more memory than the account allows", "memory_gib"),
    "QOSMinGRES": ("one job asks for fewer GPUs than its QOS wants", "qos"),
    "ReqNodeNotAvail": (("the nodes it may run on are down, drained or reserved; it starts when "
                         "one comes back"), ""),
    "PartitionDown": ("the partition {value} is down: it starts when that is up again",
                      "partition"),
    "PartitionInactive": ("the partition {value} takes no jobs: it starts when it does",
                          "partition"),
    "ReservationDeleted": ("the reservation {value} is gone", "reservation"),
    "JobHoldMaxRequeue": (("SLURM holds the job after too many requeues: `scontrol release` lets "
                           "it go"), ""),
    "launch_failed_requeued_held": (("a node could not start the job, so SLURM holds it: "
                                     "`scontrol release` lets it go"), ""),
    "AssocGrpCPUMinutesLimit": ("the account has used up its CPU time", "account"),
}  # fmt: skip
"""Reasons that do not pass by waiting, or only when somebody does something about them."""


def told(
    stderr: str, options: Mapping[str, object], known: Mapping[str, list[str]] | None = None
) -> Told:
    """What a failed sbatch, srun, scontrol or sacct said, as a sentence.

    options: `site.options`; known: field -> the names the cluster has, for a suggestion.
    """
    line = _line(stderr)
    rule = next((r for r in _RULES if re.search(r.phrase, stderr, re.IGNORECASE)), None)
    if rule is None:
        return Told(f"SLURM refuses: {line or 'without a word'}")
    return _told(rule.says, rule.field, line, options, known or {}, rule.passing)


def stuck(reason: str, options: Mapping[str, object]) -> Told | None:
    """Why a pending job will never start, by squeue's reason; None for reasons that pass."""
    name = reason.strip("()").split(",")[0].strip()
    found = _REASONS.get(name)
    if found is None:
        return None
    return _told(*found, name, options, {}, passing=False)


def _told(
    says: str, field: str, line: str, options: Mapping[str, object],
    known: Mapping[str, list[str]], passing: bool,
) -> Told:  # fmt: skip
    value = options.get(field)
    shown = "that was asked for" if value is None else f"'{value}'"
    sentence = says.format(value=shown, line=line)
    if not field:
        return Told(sentence, passing=passing)
    path = "site.runs_dir" if field == "runs_dir" else f"site.options.{field}"
    names = known.get(field, [])
    hint = did_you_mean(str(value), names) if value is not None else ""
    if not hint and names:
        hint = f" (there are: {', '.join(names)})"
    if says.endswith("{line}") or line in sentence:
        return Told(f"{sentence}{hint}; change {path}", path, passing)
    return Told(f"{sentence}{hint}; change {path}. SLURM: {line}", path, passing)


def _line(stderr: str) -> str:
    """The line that says most: the last one with `error`, without SLURM's prefixes."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    chosen = next((line for line in reversed(lines) if "error" in line.lower()), "")
    chosen = chosen or (lines[-1] if lines else "")
    return re.sub(r"^(sbatch|srun|scontrol|squeue|sacct|sacctmgr|scancel|error|fatal): *", "",
                  re.sub(r"^\w+: ", "", chosen)).strip()  # fmt: skip
