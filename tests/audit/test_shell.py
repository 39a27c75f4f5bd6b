"""The audit reads what the shell would make of a script, without running it."""

import pytest

from audit.scripts import (
    COEFFICIENT,
    IN_REWARD,
    ON_POLICY,
    OPENRLHF,
    SKYRL,
    TYPE,
    USE_LOSS,
    VERL,
    only,
    verdict,
    verdicts,
)
from orchestrator.audit import UnreadableScript, audit

SKYRL_BETA = "trainer.algorithm.kl_loss_coef"
K1 = f"{USE_LOSS}=True {TYPE}=kl {IN_REWARD}=False"


@pytest.mark.parametrize(
    "text",
    [
        f"{VERL} {K1}",
        f"X=True\n{VERL} {USE_LOSS}=$X {TYPE}=kl {IN_REWARD}=False",
        f"{VERL} {USE_LOSS}=${{X:-True}} {TYPE}=${{T:-kl}} {IN_REWARD}=False",
        f': "${{X:=True}}"\n{VERL} {USE_LOSS}=${{X}} {TYPE}=kl {IN_REWARD}=False',
        f'args=(\n  {USE_LOSS}=True  # on\n  # {TYPE}=k3\n  {TYPE}=kl\n)\n{VERL} "${{args[@]}}"',
        f"args=({IN_REWARD}=False)\nargs+=({USE_LOSS}=True {TYPE}=kl)\n{VERL} ${{args[@]}}",
        f'KL="\n {USE_LOSS}=True\n {TYPE}=kl\n"\nall=($KL)\n{VERL} "${{all[@]}}" "$@"',
        f"{VERL} \\\n  {USE_LOSS}=True \\\n  {TYPE}=kl\\\n  {IN_REWARD}=False 2>&1 | tee log",
        f'cmd="{VERL} {K1}"\neval "$cmd"',
        f'cmd="{VERL} {K1}"\n$cmd',
        f'cmd=({VERL} {K1})\n"${{cmd[@]}}"',
        f'bash -c "{VERL} {K1}"',
        f'srun --nodes=1 bash -c "source env && {VERL} {K1}" &',
        f"ray job submit --address=x -- {VERL} {K1}",
        f'ray job submit -- bash -c "cd /x && {VERL} {K1}"',
        f'ssh host "{VERL} {K1}"',
        f"cat > run.sh <<EOF\n{VERL} {K1}\nEOF\nbash run.sh",
        f"sbatch <<'EOF'\n#!/bin/bash\n{VERL} {K1}\nEOF",
        f'sbatch -N 2 --wrap="{VERL} {K1}"',
        f'sbatch --wrap "{VERL} {K1}" -N 2',
        f"cat <<EOF > job.slurm\n{VERL} {K1}\nEOF\nsbatch job.slurm",
        f"read -r -d '' line <<EOF\n{VERL} {K1}\nEOF\n$line",
        f"run() {{ {VERL} {TYPE}=kl {USE_LOSS}=$1 {IN_REWARD}=$2; }}\nrun True False",
        f'run() {{ local on=$1; shift; {VERL} {USE_LOSS}=$on "$@"; }}\nrun True {TYPE}=kl',
        f'run() {{ {VERL} {IN_REWARD}=False "${{@:2}}"; }}\nrun skipped {USE_LOSS}=True {TYPE}=kl',
        (
            f"N=$((1 + 2 * 3))\nif (( N == 7 )); then T=kl; else T=k3; fi\n"
            f"{VERL} {USE_LOSS}=True {TYPE}=$T"
        ),
        f"X=TRUE\n{VERL} {USE_LOSS}=${{X,,}} {TYPE}=kl",
        f"T=kl.old\n{VERL} {USE_LOSS}=True {TYPE}=${{T%.old}}",
        f"T=$(echo kl)\n{VERL} {USE_LOSS}=True {TYPE}=$T",
        f"name=T; T=kl\n{VERL} {USE_LOSS}=True {TYPE}=${{!name}}",
        f"PY=python3; MAIN=verl.trainer.main_ppo\n$PY -m $MAIN {K1}",
        f"torchrun --nproc 8 -m verl.trainer.main_ppo {K1}",
        f"X=1 {VERL} {K1}",
        f"({VERL} {K1}) &\nwait",
        f"while true; do\n {VERL} {K1}\n break\ndone",
        f'set -- {USE_LOSS}=True {TYPE}=kl\n{VERL} "$@"',
        f"if [ $# -lt 1 ]; then echo usage; exit 1; fi\n{VERL} {K1}",
        (
            f"while [[ $# -gt 0 ]]; do case $1 in --off) X=False; shift;; esac; done\n"
            f"{VERL} {USE_LOSS}=${{X:-True}} {TYPE}=kl"
        ),
        f"source activate verl\n{VERL} {K1}",
        f"{VERL} {USE_LOSS}=False {USE_LOSS}=True {TYPE}=kl",
    ],
)
def test_k1_in_the_loss_is_noise_however_it_is_written(text: str) -> None:
    assert verdict(text) == "zero_mean_noise"


def test_a_comment_ends_a_continued_command() -> None:
    text = f"{VERL} \\\n  {USE_LOSS}=True \\\n  # {TYPE}=kl \\\n"
    assert verdict(text) == "token_forward_kl"


def test_flags_behind_a_broken_continuation_are_told() -> None:
    found = only(f"{VERL} \\\n  data.x=1 # later \\\n  {USE_LOSS}=True \\\n  {TYPE}=kl\n")
    assert found.kl_in_loss.active is False
    assert any(f"{USE_LOSS}=True" in note.text for note in found.contradictions)


def test_a_blank_after_the_backslash_stops_the_launch_which_is_read_as_meant() -> None:
    """bash hands it on as a word; Hydra and argparse refuse a blank."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    with pytest.raises(HydraException):
        OverridesParser.create().parse_override(" ")
    found = only(f"{VERL} \\\n  data.x= \\ # later\n  {USE_LOSS}=True \\\n  {TYPE}=kl\n")
    assert (found.kl_in_loss.active, found.confidence) == (True, "assumed")
    assert any("nothing starts" in note.text for note in found.contradictions)


def test_a_launch_behind_what_the_grammar_cannot_read_is_found() -> None:
    before = "port=`comm -23 <(seq 1 9 | sort) <(ss | awk '{print $4}' | sort -u) | head -n 1`"
    found = only(f"{before}\nT=kl\n\n{VERL} {USE_LOSS}=True {TYPE}=$T {IN_REWARD}=False\n")
    assert (found.term_verdict, found.line) == ("zero_mean_noise", 4)


def test_a_launch_that_waits_for_a_switch_is_read() -> None:
    found = only(f'if [ "${{TRAIN:-0}}" = 1 ]; then\n  {VERL} {K1}\nfi')
    assert found.term_verdict == "zero_mean_noise"


def test_scripts_beside_it_are_read_where_it_calls_them() -> None:
    wrapper = (
        'while [ $# -gt 0 ]; do case $1 in --) shift; A=("$@"); break;; *) shift;; esac; done\n'
    )
    files = {"run/wrap.sh": f'{wrapper}{VERL} "${{A[@]}}"', "run/env.sh": "T=kl\n"}
    text = f'source "$HERE/run/env.sh"\nbash run/wrap.sh --x 1 -- {USE_LOSS}=True {TYPE}=$T'
    assert verdict(text, files=files) == "zero_mean_noise"
    assert verdict(text) == "undetermined"
    assert verdict(f"bash me.sh\n{VERL} {K1}", files={"me.sh": "bash me.sh"}) == "zero_mean_noise"


def test_lines_are_those_of_the_flag_and_of_the_variable() -> None:
    found = only(f"X=True\n\n{VERL} \\\n  {USE_LOSS}=$X\n")
    assert next(s for s in found.settings if s.key == USE_LOSS).lines == (4, 1)
    assert found.line == 3


def test_lines_of_a_script_in_a_string_are_those_of_the_file() -> None:
    found = only(f'srun bash -c "cd /x \\\n && {VERL} \\\n {USE_LOSS}=True \\\n {TYPE}=k2"\n')
    assert next(s for s in found.settings if s.key == TYPE).lines == (4,)


def test_a_branch_that_cannot_be_told_gives_a_case_each() -> None:
    text = f"if nvidia-smi; then T=kl; else T=k2; fi\n{VERL} {USE_LOSS}=True {TYPE}=$T"
    assert cases(text) == {"nvidia-smi": "zero_mean_noise", "not nvidia-smi": "token_reverse_kl"}


def cases(text: str) -> dict[str, str]:
    """The verdict on the KL terms in each case of one launch."""
    finding = only(text)
    assert finding.verdict == "undetermined"
    return {each.when: each.term_verdict for each in finding.conditional}


def test_branches_that_hang_together_are_not_mixed() -> None:
    text = (
        "if nvidia-smi; then ALGO=a; else ALGO=b; fi\n"
        "if [ $ALGO = a ]; then ON=True; T=k2; else ON=False; T=kl; fi\n"
        f"{VERL} {USE_LOSS}=$ON {TYPE}=$T {IN_REWARD}=False"
    )
    assert sorted(cases(text).values()) == ["no_kl", "token_reverse_kl"]


def test_a_branch_that_does_not_matter_gives_one() -> None:
    text = f"if nvidia-smi; then B=400; else B=300; fi\n{VERL} {K1} data.train_batch_size=$B"
    assert verdicts(text) == {None: "zero_mean_noise"}


def test_a_loop_gives_a_case_each() -> None:
    text = f"for t in kl k2 low_var_kl; do\n {VERL} {USE_LOSS}=True {TYPE}=$t\ndone"
    assert verdicts(text) == {
        "t=kl": "zero_mean_noise",
        "t=k2": "token_reverse_kl",
        "t=low_var_kl": "token_forward_kl",
    }


def test_what_an_argument_decides_is_that_of_a_run_without_it_and_says_so() -> None:
    text = f'case "$1" in\n a) T=kl;;\n *) T=k2;;\nesac\n{VERL} {USE_LOSS}=True {TYPE}=$T'
    finding = only(text)
    assert finding.term_verdict == "token_reverse_kl"
    (kind,) = (each for each in finding.settings if each.key == TYPE)
    assert kind.default_of == ("its arguments",)


def test_a_launch_of_an_argument_is_not_the_usual_one() -> None:
    text = f'case "$1" in\n a) {VERL} {K1};;\n *) {VERL} {USE_LOSS}=True {TYPE}=k2;;\nesac\n'
    found = {each.term_verdict: each.usual for each in audit(text, "x.sh")}
    assert found == {"zero_mean_noise": False, "token_reverse_kl": True}


def test_words_that_one_arm_adds_leave_their_keys_open() -> None:
    text = f"if nvidia-smi; then A+=({USE_LOSS}=True); fi\n{VERL} {ON_POLICY} ${{A[@]}} x.y=1\n"
    assert only(text).verdict == "undetermined"
    other = f"if nvidia-smi; then A+=(trainer.x=1); fi\n{VERL} {ON_POLICY} ${{A[@]}} {K1}\n"
    assert verdict(other) == "zero_mean_noise"


def test_arms_that_start_two_trainers_are_two_launches() -> None:
    text = f'C="{VERL} {K1}"; if x; then C="{OPENRLHF}"; fi; $C\n'
    assert {each.library for each in audit(text, "x.sh")} == {"verl", "openrlhf"}


def test_an_unset_switch_is_off_and_said_to_be_assumed() -> None:
    found = only(f"{VERL} {USE_LOSS}=True {USE_LOSS}=${{nothing}} {IN_REWARD}=False")
    assert found.term_verdict == "no_kl"
    assert any("$nothing is not set in the environment" in each for each in found.assumes)
    assert any("2 times" in note.text for note in found.contradictions)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{VERL} {USE_LOSS}=True {COEFFICIENT}=$(cat beta)", "output of $(cat beta)"),
        (f"{VERL} {USE_LOSS}=True {COEFFICIENT}=$BETA", "$BETA"),
        (f"source my.sh\n{VERL} {USE_LOSS}=$ON {IN_REWARD}=False", "my.sh"),
        (f"read ON\n{VERL} {USE_LOSS}=$ON", "$ON"),
        (f"python3 -m verl.trainer.main_ppo --config-name mine {USE_LOSS}=True", "'mine'"),
        (f"{OPENRLHF} --init_kl_coef $1", "argument $1"),
        ("bash other.sh trainer.algorithm.use_kl_loss=true", "other.sh"),
        (f"bash other.sh {IN_REWARD}=False", "other.sh"),
        (f"{SKYRL} trainer.algorithm.kl_estimator_type=$(./choose)", "./choose"),
    ],
)
def test_what_only_running_would_tell_is_said_so(text: str, why: str) -> None:
    found = only(text)
    assert found.term_verdict == "undetermined"
    assert why in found.why


def test_several_commands_are_several_findings() -> None:
    text = f"python serve_rm.py --port 5000 &\n{VERL} {K1}\n{OPENRLHF} --init_kl_coef 0.1\n"
    assert [(f.line, f.library) for f in audit(text, "x.sh")] == [(2, "verl"), (3, "openrlhf")]


def test_what_is_only_printed_is_no_launch() -> None:
    with pytest.raises(UnreadableScript, match="no launch"):
        audit(f'echo "{VERL} {K1}"', "x.sh")


def test_a_function_that_nobody_calls_is_read() -> None:
    assert verdict(f"go() {{ {VERL} {K1}; }}") == "zero_mean_noise"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (f'mapfile -t F <<< "{USE_LOSS}=True\n{TYPE}=kl"', '"${F[@]}"'),
        (f'read -ra F <<< "{USE_LOSS}=True {TYPE}=kl"', '"${F[@]}"'),
        (f'declare -A C=([low]="{TYPE}=low_var_kl" [a]="{TYPE}=kl")', f"{USE_LOSS}=True ${{C[a]}}"),
        (f'declare -A C; C[a]="{TYPE}=kl"; m=a', f"{USE_LOSS}=True ${{C[$m]}}"),
        ("", f"algorithm.{{use_kl_in_reward=True,kl_penalty=kl}} {USE_LOSS}=False"),
        (f"trap 'T=kl' ERR; T=mse; {USE_LOSS}=True", f"{TYPE}=$T {USE_LOSS}=True"),
    ],
)
def test_what_is_not_followed_is_not_determined(before: str, words: str) -> None:
    """It was left out, and the answer was sure of itself."""
    assert verdict(f"{before}\n{VERL} {words}\n") == "undetermined"


def test_words_that_nobody_can_read_leave_no_answer_certain() -> None:
    """`$(python flags.py)` may switch a KL on: the answer said that it is certain."""
    finding = only(f"{VERL} {ON_POLICY} {IN_REWARD}=False $(python flags.py)\n")
    assert (finding.term_verdict, finding.confidence) == ("no_kl", "assumed")
    assert any("does not change the KL" in each for each in finding.assumes)
    text = f"{VERL} {ON_POLICY} {IN_REWARD}=False trainer.project_name=$(date)\n"
    value = only(text, versions={"verl": "0.9.1 told"})
    assert value.confidence == "certain"


@pytest.mark.parametrize(
    ("function", "launch"),
    [
        ("flags() { cat kl_flags; }", f"{OPENRLHF} --use_kl_loss --kl_estimator k2 $(flags)"),
        ("kl() { head -1 flags; }", f'{VERL} {USE_LOSS}=True {TYPE}=mse "$(kl)"'),
        ("function kl_of { echo --beta $1; }", "trl rloo --dataset_name a/b `kl_of 0.1`"),
        ("flags() { cat kl_flags; }", "uv run rl @ run.toml $(flags)"),
        ("", "uv run rl @ run.toml $(kl_flags)"),
        ("", f"{OPENRLHF} $(cat kl_flags)"),
    ],
)
def test_flags_from_a_function_that_names_a_kl_leave_the_kl_open(
    function: str, launch: str
) -> None:
    """The answer had the release's default, and took for granted that the words add no KL."""
    finding = only(f"{function}\n{launch}\n")
    assert (finding.verdict, finding.confidence) == ("undetermined", "none")
    assert "may put words into it" in finding.why


def test_flags_from_a_function_that_names_no_kl_are_an_assumption() -> None:
    launch = f"{OPENRLHF} --use_kl_loss --kl_estimator k2 $(nodes)"
    finding = only(f"nodes() {{ cat hosts; }}\n{launch}\n")
    assert (finding.term_verdict, finding.confidence) == ("token_reverse_kl", "assumed")


@pytest.mark.parametrize(
    ("launch", "key"),
    [
        (f"{VERL} {USE_LOSS}=True {COEFFICIENT}=${{KL:-0.01}}", COEFFICIENT),
        (f"{OPENRLHF} --init_kl_coef ${{KL:-0.01}}", "init_kl_coef"),
        (f"{SKYRL} trainer.algorithm.use_kl_loss=true {SKYRL_BETA}=${{KL-0.01}}", SKYRL_BETA),
        ("trl rloo --dataset_name a/b --beta=${KL:-0.01}", "beta"),
        (f": ${{KL:=0.01}}; A=({COEFFICIENT}=$KL); {VERL} {USE_LOSS}=True ${{A[@]}}", COEFFICIENT),
    ],
)
def test_a_setting_names_the_variable_whose_default_it_has(launch: str, key: str) -> None:
    """`${KL:-0.01}` was 0.01, and no word said that a caller may set it."""
    given = {each.key: each for each in only(launch).settings}
    assert (given[key].value, given[key].default_of) == ("0.01", ("$KL",))
    known = {each.key: each for each in only(f"KL=0.01\n{launch}").settings}
    assert (known[key].value, known[key].default_of) == ("0.01", ())


def test_a_default_of_an_argument_in_a_default_names_both() -> None:
    finding = only(f"{VERL} {USE_LOSS}=True {COEFFICIENT}=${{KL:-${{2:-0.01}}}}")
    (given,) = (each for each in finding.settings if each.key == COEFFICIENT)
    assert given.default_of == ("$KL", "$2")
    assert finding.confidence == only(f"{VERL} {USE_LOSS}=True {COEFFICIENT}=0.01").confidence


@pytest.mark.parametrize(
    ("launch", "off", "on"),
    [
        (f"{OPENRLHF} --init_kl_coef $KL", "no_kl", "unbiased_reverse_kl"),
        ("trl rloo --dataset_name a/b --beta $KL", "no_kl", "unbiased_reverse_kl"),
    ],
)
def test_a_branch_in_the_word_after_a_flag_makes_two_cases(launch: str, off: str, on: str) -> None:
    """The value alone does not say that it is a weight; only the first arm was read."""
    text = f"if nvidia-smi | grep -q H100; then KL=0; else KL=0.04; fi\n{launch}\n"
    assert {*cases(text).values()} == {off, on}


def test_a_mapping_in_quotes_is_several_keys() -> None:
    quoted = f"{VERL} {ON_POLICY} '+algorithm={{use_kl_in_reward: True, kl_penalty: kl}}'"
    assert verdict(quoted) == "unbiased_reverse_kl"
