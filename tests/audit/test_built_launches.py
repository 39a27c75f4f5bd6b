"""Launches built to mislead a reader, each with the truth that its construction gives.

A wrong answer fails here. No answer (`undetermined`) is allowed in a shell script, and where `OPEN`
says so.
"""

import pytest

from audit.scripts import COEFFICIENT, IN_REWARD, ON_POLICY, OPENRLHF, TYPE, USE_LOSS, only
from orchestrator.audit import audit

TRAIN = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo "
    f"{ON_POLICY} {IN_REWARD}=False {USE_LOSS}=True"
)
K1, K2, K3 = "zero_mean_noise", "token_reverse_kl", "token_forward_kl"
OPEN = "undetermined"

SHELL = {
    "a local variable ends with its function": (
        f"T=kl\nf() {{ local T=mse; echo $T; }}\nf\n{TRAIN} {TYPE}=$T",
        K1,
    ),
    "a function sees the local variables of its caller": (
        f"outer() {{ local T=mse; inner; }}\ninner() {{ {TRAIN} {TYPE}=$T; }}\nT=kl\nouter",
        K2,
    ),
    "a subshell keeps its variables": (f"T=kl\n( T=mse )\n{TRAIN} {TYPE}=$T", K1),
    "an element is replaced": (f"A=(x {TYPE}=kl)\nA[1]={TYPE}=mse\n{TRAIN} ${{A[@]:1}}", K2),
    "an element is added": (f"A=(x)\nA[1]={TYPE}=mse\n{TRAIN} ${{A[@]}}", K2),
    "an element is removed": (
        f"A=({TYPE}=mse {TYPE}=kl)\nunset 'A[1]'\n{TRAIN} ${{A[@]}}",
        K2,
    ),
    "an element of a text key": (
        f"declare -A A=([x]=kl [y]=low_var_kl)\nA[x]=mse\n{TRAIN} {TYPE}=${{A[x]}}",
        K2,
    ),
    "the elements of an array are changed": (
        f'A=({TYPE}=kl)\n{TRAIN} "${{A[@]/type=kl/type=mse}}"',
        K2,
    ),
    "an empty array has its default": (f"A=()\n{TRAIN} ${{A[@]:-{TYPE}=mse}}", K2),
    "a child gets no variable that is not exported": (
        f"K=mse\nbash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K1,
    ),
    "a child gets what is exported": (f"export K=mse\nbash -c '{TRAIN} {TYPE}=${{K:-kl}}'", K2),
    "declare -x exports": (f"declare -x K=mse\nbash -c '{TRAIN} {TYPE}=${{K:-kl}}'", K2),
    "set -a exports": (f"set -a\nK=mse\nset +a\nbash -c '{TRAIN} {TYPE}=${{K:-kl}}'", K2),
    "export -n takes it back": (
        f"export K=mse\nexport -n K\nbash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K1,
    ),
    "a written script is a child": (
        f"cat > in.sh <<'EOF'\n{TRAIN} {TYPE}=${{K:-kl}}\nEOF\nK=mse\nbash in.sh",
        K1,
    ),
    "a command's own environment": (
        f"cat > in.sh <<'EOF'\n{TRAIN} {TYPE}=${{K:-kl}}\nEOF\nK=mse bash in.sh",
        K2,
    ),
    "a command's own environment ends with it": (f"T=kl\nT=mse true\n{TRAIN} {TYPE}=$T", K1),
    "a child changes nothing outside": (f"T=kl\nbash -c 'T=mse'\n{TRAIN} {TYPE}=$T", K1),
    "bash -s has arguments": (f"bash -s mse <<'EOF'\n{TRAIN} {TYPE}=$1\nEOF", K2),
    "env -i clears": (
        f"export K=mse\nenv -i PATH=/bin bash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K1,
    ),
    "env -u removes": (f"export K=mse\nenv -u K bash -c '{TRAIN} {TYPE}=${{K:-kl}}'", K1),
    "env sets": (f"env K=mse bash -c '{TRAIN} {TYPE}=${{K:-kl}}'", K2),
    "docker run -e": (f"docker run -e K=mse i bash -c '{TRAIN} {TYPE}=${{K:-kl}}'", K2),
    "docker run --env=": (f"docker run --env=K=mse i bash -c '{TRAIN} {TYPE}=${{K:-kl}}'", K2),
    "docker run hands a variable on": (
        f"export K=mse\ndocker run -e K i bash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K2,
    ),
    "docker run begins without variables": (
        f"export K=mse\ndocker run i bash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K1,
    ),
    "ssh begins without variables": (
        f"export K=mse\nssh node 'cd x && {TRAIN} {TYPE}=${{K:-kl}}'",
        K1,
    ),
    "srun --export=NONE": (
        f"export K=mse\nsrun --export=NONE bash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K1,
    ),
    "sbatch --export": (
        f"sbatch --export=ALL,K=mse --wrap='{TRAIN} {TYPE}=${{K:-kl}}'",
        K2,
    ),
    "double quotes are read outside": (f'K=kl\nsrun bash -c "K=mse; {TRAIN} {TYPE}=$K"', K1),
    "an escaped dollar is read inside": (
        f'K=kl\nsrun bash -c "K=mse; {TRAIN} {TYPE}=\\$K"',
        K2,
    ),
    "a test decides between && and ||": (
        f'U=1\n[ "$U" = 1 ] && T=mse || T=kl\n{TRAIN} {TYPE}=$T',
        K2,
    ),
    "a comment in backquotes": (f"{TRAIN} \\\n `# the kind` \\\n {TYPE}=mse", K2),
    "a heredoc for nobody": (
        f"cat <<'E' > /dev/null\n{TRAIN} {TYPE}=kl\nE\n{TRAIN} {TYPE}=mse",
        K2,
    ),
    "let counts": (f"N=1; let N=N-1\n{TRAIN} {TYPE}=kl {COEFFICIENT}=$N", "no_kl"),
    "arithmetic counts down": (f"N=1\n((N--))\n{TRAIN} {TYPE}=kl {COEFFICIENT}=$N", "no_kl"),
    "arithmetic adds": (f"N=0\n((N += 2))\n{TRAIN} {TYPE}=mse {COEFFICIENT}=$N", K2),
    "another name of a variable": (
        f"T=kl\nf() {{ local -n r=$1; r=mse; }}\nf T\n{TRAIN} {TYPE}=$T",
        OPEN,
    ),
    "apptainer hands the environment on": (
        f"export K=mse\napptainer exec i.sif bash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K2,
    ),
    "apptainer --cleanenv": (
        f"export K=mse\napptainer exec --cleanenv i.sif bash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K1,
    ),
    "apptainer --env": (
        f"apptainer exec --env K=mse i.sif bash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K2,
    ),
    "ray gives a job its own environment": (
        f"export K=mse\nray job submit -- bash -c '{TRAIN} {TYPE}=${{K:-kl}}'",
        K1,
    ),
    "ray's runtime environment": (
        (
            'ray job submit --runtime-env-json=\'{"env_vars": {"K": "mse"}}\' -- '
            f"bash -c '{TRAIN} {TYPE}=${{K:-kl}}'"
        ),
        K2,
    ),
    "an abbreviated flag and the last value": (
        f"{OPENRLHF} --init_kl 0.1 --use_kl_l --kl_est k3 --kl_estimator=k2",
        K2,
    ),
}


@pytest.mark.parametrize("name", SHELL)
def test_shell(name: str) -> None:
    text, truth = SHELL[name]
    findings = [each for each in audit(text, "x.sh") if each.usual]
    assert {each.term_verdict for each in findings} <= {truth, OPEN}


def test_what_sudo_keeps_is_not_known() -> None:
    finding = only(f"export K=mse\nsudo bash -c '{TRAIN} {TYPE}=${{K:-kl}}'")
    assert finding.verdict == "undetermined"
    assert "sudo" in finding.why


YAML = {
    "a merge key": (
        (
            "b: &b {use_kl_loss: true, kl_loss_type: kl}\n"
            "actor_rollout_ref: {actor: {<<: *b, kl_loss_type: mse}}\n"
        ),
        K2,
    ),
    "the first of several merged mappings": (
        (
            "a: &a {use_kl_loss: false}\nb: &b {use_kl_loss: true, kl_loss_type: mse}\n"
            "actor_rollout_ref: {actor: {<<: [*b, *a]}}\n"
        ),
        K2,
    ),
    "a merged mapping that merges": (
        (
            "a: &a {use_kl_loss: true}\nb: &b {<<: *a, kl_loss_type: mse}\n"
            "actor_rollout_ref: {actor: {<<: *b}}\n"
        ),
        K2,
    ),
    "a mapping is not merged deeper": (
        (
            "a: &a {actor: {use_kl_loss: true}}\n"
            "actor_rollout_ref: {<<: *a, actor: {kl_loss_type: kl}}\n"
        ),
        "no_kl",
    ),
}


@pytest.mark.parametrize("name", YAML)
def test_yaml(name: str) -> None:
    text, truth = YAML[name]
    rest = "algorithm: {adv_estimator: rloo, use_kl_in_reward: false}\n"
    assert only(text + rest, "x.yaml").term_verdict == truth


def test_a_mapping_that_merges_itself_ends() -> None:
    text = "actor_rollout_ref: &a {<<: *a, actor: {use_kl_loss: true}}\nalgorithm: {x: 1}\n"
    with pytest.raises(Exception, match="more than 20000 values"):
        audit(text, "x.yaml")


CALL = "from trl import GRPOConfig\nfrom dataclasses import replace\n"
WORDS = [*TRAIN.split(), f"{TYPE}=kl"]
CONFIG = (
    "c = {'actor_rollout_ref': {'actor': {'use_kl_loss': True, 'kl_loss_type': 'kl'}}, "
    "'algorithm': {'use_kl_in_reward': False}}\n"
)
PYTHON = {
    "an environment that Python makes": (
        (
            "import os, subprocess\n"
            f"subprocess.run('{TRAIN} {TYPE}=${{K:-kl}}', shell=True, "
            "env=dict(os.environ, K='mse'))\n"
        ),
        {OPEN},
    ),
    "a variable that Python sets": (
        f"import os\nos.environ['K'] = 'mse'\nos.system('{TRAIN} {TYPE}=${{K:-kl}}')\n",
        {OPEN},
    ),
    "setattr": (f"{CALL}a = GRPOConfig('x', beta=0.1)\nsetattr(a, 'beta', 0.0)\n", {"no_kl"}),
    "replace of a call": (f"{CALL}a = replace(GRPOConfig('x', beta=0.1), beta=0.0)\n", {"no_kl"}),
    "replace of a name": (
        f"{CALL}a = GRPOConfig('x', beta=0.1)\nb = replace(a, beta=0.0)\n",
        {OPEN},
    ),
    "a joined list": (
        f"import os\na = ['{TYPE}=mse']\nos.system('{TRAIN} ' + ' '.join(a))\n",
        {K2},
    ),
    "a formatted string": (
        f"import os\nos.system('{TRAIN} {TYPE}={{}}'.format(kind()))\n",
        {OPEN},
    ),
    "a string with per cent": (
        f"import os\nos.system('{TRAIN} {TYPE}=%s' % kind())\n",
        {OPEN},
    ),
    "a list that is the base of another": (
        f"import subprocess\nb = {WORDS!r}\nsubprocess.run(b + ['{TYPE}=mse'])\n",
        {K2},
    ),
    "a list that is unpacked in another": (
        f"import subprocess\nb = {WORDS!r}\nsubprocess.run([*b, '{TYPE}=mse'])\n",
        {K2},
    ),
    "a copy that grows": (
        (
            f"import subprocess\nb = {TRAIN.split()!r}\nc = list(b)\nc.append('{TYPE}=mse')\n"
            "subprocess.run(c)\n"
        ),
        {OPEN},
    ),
    "a list that is filtered": (
        (
            f"import subprocess\nc = {TRAIN.split()!r}\nc = [w for w in c if 'kl' not in w]\n"
            "subprocess.run(c)\n"
        ),
        {OPEN},
    ),
    "a list that a function changes": (
        (
            f"import subprocess\nC = {TRAIN.split()!r}\ndef f(c):\n    c[3] = 'x'\nf(C)\n"
            "subprocess.run(C)\n"
        ),
        {OPEN},
    ),
    "a string that is split": (
        (
            f"import subprocess\nc = '{TRAIN} {TYPE}=kl'.split()\nc += ['{TYPE}=mse']\n"
            "subprocess.run(c)\n"
        ),
        {OPEN},
    ),
    "a section is updated": (
        f"{CONFIG}c['actor_rollout_ref']['actor'].update({{'kl_loss_type': 'mse'}})\n",
        {OPEN},
    ),
    "a key is added": (f"{CONFIG}c['algorithm']['use_kl_in_reward'] = True\n", {OPEN}),
    "a key is updated by its path": (
        f"{CONFIG}OmegaConf.update(c, 'actor_rollout_ref.actor.kl_loss_type', 'mse')\n",
        {OPEN},
    ),
    "a section replaces that of the base": (
        f"{CONFIG}d = {{**c, 'actor_rollout_ref': {{'actor': {{'use_kl_loss': False}}}}}}\n",
        {"no_kl"},
    ),
    "keyword arguments of two dictionaries": (
        f"{CALL}a = {{'beta': 0.1}}\nb = {{'beta': 0.0}}\nGRPOConfig('x', **{{**a, **b}})\n",
        {"no_kl"},
    ),
    "a name that an expression sets": (
        f"{CALL}B = 0.1\nif (B := 0.0) == 0: pass\nGRPOConfig('x', beta=B)\n",
        {OPEN},
    ),
    "a name among several": (
        f"{CALL}B = 0.1\nB, C = 0.0, 1\nGRPOConfig('x', beta=B)\n",
        {OPEN},
    ),
    "a name that is one of several": (
        f"{CALL}B, C = 0.0, 1\nGRPOConfig('x', beta=B)\n",
        {"no_kl"},
    ),
    "a word is removed": (
        f"import subprocess\nc = {TRAIN.split()!r}\nc.remove('x')\nsubprocess.run(c)\n",
        {OPEN},
    ),
    "a word is deleted": (
        f"import subprocess\nc = {TRAIN.split()!r}\ndel c[3]\nsubprocess.run(c)\n",
        {OPEN},
    ),
}


@pytest.mark.parametrize("name", PYTHON)
def test_python(name: str) -> None:
    text, truths = PYTHON[name]
    findings = audit(text, "x.py")
    assert {each.term_verdict for each in findings} <= truths
    if "beta=0.0" in text or "= 0.0" in text or "'beta': 0.0" in text:
        for each in findings:  # of a value that Python changes, each case is given
            cases = {case.term_verdict for case in each.conditional}
            assert not cases or "no_kl" in cases
