"""Scripts that set X in a way drawn at random, and what bash itself makes of them."""

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

KEY = "algorithm.kl_ctrl.kl_coef"
LAUNCH = f'\npython3 -m verl.trainer.main_ppo {KEY}="$X" trainer.last=1\n'
PROGRAM = (
    '#!/bin/bash\nfor word in "$@"; do\n'
    f'  case "$word" in {KEY}=*) printf "%s\\0" "${{word#*=}}";; esac\ndone\n'
)
"""A `python3` that prints what it is given for the key, each with a zero byte behind."""

SETTERS = r"""
X=§
X="§"
X='§'
X=$'\060.§§'
X=$'0.\x31§§'
export X=§
declare X=§
A=§; X=$A
A=§; X="${A}"
A=kl§; X=${A#kl}
A=a/b/§; X=${A##*/}
A=§.txt; X=${A%.txt}
A=§.a.b; X=${A%%.a*}
A=x§x; X=${A//x/}
A=x§; X=${A/x/}
A=§; X=${A/./,}; X=${X/,/.}
A=abc§xyz; X=${A:3:5}
A=abc§; X=${A:3}
A=abc§; X=${A: -5}
X=${X:-§}
X=${UNSET_ONE-§}
X=${UNSET_ONE:=§}; X=$UNSET_ONE
A=1; X=${A:+§}
A=; X=${A:-§}
A=; X=${A-§}; X=${X:-§}
N=¤; X=0.0$N
X=0.00$((¤ + ¤))
X=0.00$((¤ * 2))
X=0.0$(( (¤ + 3) % 7 ))
X=0.00$((a=3,a*2))
N=¤; ((N++)); X=0.0$N
N=¤; ((N += 2)); X=0.0$N
N=¤; let N+=1; X=0.0$N
N=¤; let "N = N * 2"; X=0.0$N
declare -i N; N=3+¤; X=0.0$N
declare -i N=1; N+=¤; X=0.$N
typeset -i N=¤; N+=2; X=0.$N
N=¤; N+=2; X=0.$N
eval "$(printf 'X=%q' §)"
A=(0.1 § 0.3); X=${A[1]}
A=(0.1 0.2 §); X=${A[-1]}
A=(0.1 0.2); A+=(§); X=${A[2]}
A=(); A[0]=§; X=${A[0]}
A[5]=§; X=${A[5]}
A=(0.4 0.5); A[¤]=§; X=${A[¤]}
A=(0.1 §); X=${A[@]:1}
A=(a § b); X=${A[@]:1:1}
A=(0.1 0.2); X=0.${#A[@]}
A=abcd; X=0.${#A}
declare -A M; M[kl]=§; X=${M[kl]}
declare -A M=([a]=0.1 [kl]=§); X=${M[kl]}
declare -A M=([kl]=§); K=kl; X=${M[$K]}
A=(0 001); IFS=.; X="${A[*]}"; unset IFS
A=(0 1 2); X="${A[*]}"; X=${X// /}
set -- a § b; X=$2
set -- a b §; X=${@: -1}
set -- a § b; shift; X=$1
set -- a b c; X=0.$#
set -- 0.{1,2}¤; X=$2
set -- 0.{1,2{1,2}}; X=$3
IFS=:; A=a:§; set -- $A; unset IFS; X=$2
IFS=, read -r -a A <<< "0.1,§,0.5"; X=${A[1]}
read -r A X <<< "a §"
read -r A X <<< "a § "
read -r X <<< "§"
read X B <<< "§ b c"
read -r X _ <<< "§ b c"
read -ra A <<< "a § c"; X=${A[1]}
mapfile -t A <<< "§"; X=${A[0]}
printf -v X '%s.%s' 0 05
printf -v X '0.1%s' ¤
printf -v X '%s' §
X=$(echo §)
X=$(echo -n §)
X=`echo §`
X=$(printf '%s' §)
X=$(printf '0.%03d' ¤)
X=$(basename a/b/§)
X=$(dirname §/b)
X=$(false || echo §)
X=$(true && echo §)
X=$(echo a:§ | cut -d: -f2)
X=$(echo v§ | sed 's/^v//')
X=$(cat <<< §)
X=$(f() { echo §; }; f)
f() { echo §; }; X=$(f)
f() { X=§; }; f
f() { local X=0.9; }; X=§; f
f() { local X=0.9; X=0.8; }; X=§; f
f() { X=$1; }; f §
f() { X=$2; }; f a §
f() { shift; X=$1; }; f a §
f() { X=0.0$#; }; f a b c
f() { X=§; return; X=0.9; }; f
f() { X=0.9; }; unset -f f; X=§; f 2>/dev/null
f() { X=0.9; }; f() { X=§; }; f
function f { X=§; }; f
X=0.9; X=§
X=0.9; unset X; X=§
X=§; X+=1
X=0.9 true; X=§
X=§; X=0.9 true
X=§; (X=0.9)
X=§; ( X=0.9; true )
X=§; { X=§; }
X=§; X=0.9 & wait
X=§; { X=0.9; } & wait
X=§; true | X=0.9
X=§; echo a | { read -r X; }
X=§; echo 0.9 | read -r X
X=§; while false; do X=0.9; done
X=§; for i in; do X=0.9; done
for i in 1 2 ¤; do X=0.0$i; done
for i in {1..4}; do X=0.0$i; done
for i in {1..9..3}; do X=0.0$i; done
for i in {01..03}; do X=0.$i; done
for i in {3..1}; do X=0.0$i; done
for i in {a..c}; do X=0.1; done; X=§
for i in a b; do X=§; break; X=0.9; done
for i in 1 2 3; do [ $i = 2 ] && continue; X=0.$i; done
for i in 1 2; do for j in 1 2; do X=0.$i$j; break 2; done; X=0.9; done
for i in 1 2; do for j in 1 2; do [ $j = 2 ] && continue 2; X=0.$i$j; done; X=0.9; done
for ((i = 0; i < 3; i++)); do X=0.$i; done
i=0; while [ $i -lt 3 ]; do i=$((i + 1)); X=0.0$i; done
i=0; while ((i < 3)); do ((i++)); X=0.0$i; done
i=0; until [ $i -ge 2 ]; do i=$((i + 1)); X=0.0$i; done
while read -r k v; do [ "$k" = kl ] && X=$v; done <<< "kl §"
if true; then X=§; else X=0.9; fi
if false; then X=0.9; else X=§; fi
if [ a = b ]; then X=0.9; else X=§; fi
if [ a = a ]; then X=§; fi
if [ a = b -o c = c ]; then X=§; else X=0.9; fi
if [ a = b -a c = c ]; then X=0.9; else X=§; fi
if [[ a == a* ]]; then X=§; else X=0.9; fi
if [[ ab == "a*" ]]; then X=0.9; else X=§; fi
if [[ a* == "a*" ]]; then X=§; else X=0.9; fi
if [[ ab == a"*" ]]; then X=0.9; else X=§; fi
if [[ ab == a'b' ]]; then X=§; else X=0.9; fi
if [[ 10 < 9 ]]; then X=§; else X=0.9; fi
if [[ 10 -gt 9 ]]; then X=§; else X=0.9; fi
if [[ -z "" && -n a ]]; then X=§; else X=0.9; fi
if [[ ! a == b ]]; then X=§; else X=0.9; fi
if ! false; then X=§; else X=0.9; fi
if [[ abc =~ ^a.c$ ]]; then X=§; else X=0.9; fi
A=kl§; [[ $A =~ ([0-9.]+)$ ]] && X=${BASH_REMATCH[1]}
if ((¤ > 0)); then X=§; else X=0.9; fi
if ((0)); then X=0.9; else X=§; fi
X=§; ((0)) && X=0.9
((0)) || X=§
X=§; ((1)) || X=0.9
((1)) && X=§
X=§; false && X=0.9
X=0.9; true && X=§
false || X=§
X=§; true || X=0.9
X=§; [ a = b ] && X=0.9
[ a = a ] && X=§
[ a = b ] || X=§
[[ a = b ]] && X=0.9 || X=§
[[ a = a ]] && X=§ || X=0.9
X=§; ! true && X=0.9
X=§; ( exit 3 ); [ $? = 3 ] || X=0.9
X=0.9; ( exit 3 ); [ $? = 3 ] && X=§
true; X=0.1$?
case a in a) X=§;; *) X=0.9;; esac
case ab in a*) X=§;; *) X=0.9;; esac
case b in a) X=0.9;; *) X=§;; esac
case a in b|a) X=§;; *) X=0.9;; esac
case ab in "a*") X=0.9;; *) X=§;; esac
case ab in a"*") X=0.9;; *) X=§;; esac
case 'a*' in "a*") X=§;; *) X=0.9;; esac
case ab in [a-c]b) X=§;; *) X=0.9;; esac
case ab in a?) X=§;; *) X=0.9;; esac
case ab in a*) X=0.9;;& *b) X=§;; *) :;; esac
case a in a) X=0.9;& b) X=§;; *) X=0.8;; esac
P='a*'; case ab in $P) X=§;; *) X=0.9;; esac
P='a*'; case ab in "$P") X=0.9;; *) X=§;; esac
shopt -s nocasematch; case A in a) X=§;; *) X=0.9;; esac; shopt -u nocasematch
shopt -s nocasematch; if [[ A == a ]]; then X=§; else X=0.9; fi; shopt -u nocasematch
shopt -s extglob; F=000§; X=${F##+(0)}; X=0$X
X=§; trap 'X=0.9' ERR; false; trap - ERR
X=0.9; trap 'X=§' ERR; false; trap - ERR
X=§; trap 'X=0.9' DEBUG; :; trap - DEBUG; X=§
X=§; trap 'X=0.9' EXIT
eval X=§
eval "X=§"
A='X=§'; eval "$A"
V=X; eval "$V=§"
V=X; declare "$V=§"
V=X; printf -v "$V" '%s' §
V=X; read -r "$V" <<< §
A=§; V=A; X=${!V}
declare -n R=X; R=§
f() { local -n R=$1; R=§; }; f X
F=§; X=${F@Q}; eval X=$X
F=1e-7; X=${F@U}
F=AB; X=${F,,}; X=§
F=ab; X=0.1${F^^}
F=ab; X=0.1${F^}
A=§; B='$A'; X=$A
A="x §"; set -- $A; X=$2
A="x §"; for w in $A; do X=$w; done
A=("x y" §); X=${A[1]}
A=("x y" z); set -- "${A[@]}"; X=0.$#
A=("x y" z); set -- ${A[@]}; X=0.$#
A=("x y" z); set -- "${A[*]}"; X=0.$#
A="{0.1,0.2}"; X=${A#*,}; X=${X%\}}
X={0.1,0.2}; X=§
X=~+; X=§
X=0\.1¤
X="0\.1"; X=§
X="a\"b"; X=§
X=§ # 0.9
X=§; # X=0.9
: ${X:=§}
: "${X:=§}"
X=; : ${X:=§}
test a = a && X=§
test a = b || X=§
[ -n "$NOT_SET" ] || X=§
[ -z "$NOT_SET" ] && X=§
[ -v NOT_SET ] || X=§
select_() { X=§; }; select_
set -e; X=§; set +e
set -u; X=§; set +u
command eval X=§
builtin eval X=§
command true; X=§
exec 3<<< "§"; read -r X <&3; exec 3<&-
{ read -r X; } <<< "§"
read -r X < <(echo §)
X=§; cat > /dev/null <<EOF
X=0.9
EOF
read -r X <<EOF
§
EOF
X=$(cat <<EOF
§
EOF
)
while read -r k v; do [ "$k" = kl ] && X=$v; done <<EOF
lr 0.1
kl §
EOF
OPTIND=1; getopts "b:" Y -b §; X=$OPTARG
X=§; [[ x ]] || { X=0.9; }
X=§; if [[ x -eq 0 ]]; then X=0.0¤; fi
X=§ Y=$X; X=$Y
A=0.9; A=§ X=$A
! X=§
X=§; wait
X=$((16#1f)); X=0.$X
X=$((010)); X=0.$X
X=$((2**3)); X=0.$X
X=$((7/2)); X=0.$X
X=$((-7/2)); X=0.0${X#-}
X=$((1 ? ¤ : 9)); X=0.0$X
X=$((~0)); X=0.0${X#-}
X=$((6&3)); X=0.0$X
X=$((6|3)); X=0.0$X
X=$((6^3)); X=0.0$X
X=$[¤ + 1]; X=0.0$X
f() { X=0.0$1$2; }; f 6 8
set -- 0.1 b; X=$10
set -- 1 2; X=0.$#$1
NAME=NOVAL; X=${!NAME:-§}
declare -l X=ABC
typeset -u X; X=abc
shopt -s lastpipe; echo § | read X
X=1; shopt -s lastpipe; true | X=§
"""
"""Ways to set X: `§` is a number such as 0.137, `¤` a digit. A heredoc goes on to its end."""
WRAPPERS = (
    "%s",
    "%s",
    "%s",
    "if true; then\n%s\nfi",
    "{\n%s\n}",
    "g() {\n%s\n}\ng",
    "for turn in 1; do\n%s\ndone",
    "case yes in yes)\n%s\n;; esac",
    "[ 1 = 1 ] && {\n%s\n}",
    "X=0.7\n(\n%s\n)",
    "X=0.7\n{\n%s\n} | cat",
    "X=0.7\n{\n%s\n} &\nwait",
    "X=0.7\nif false; then\n%s\nfi",
    "while true; do\n%s\nbreak\ndone",
)
"""Constructs around a way to set X. Some are processes of their own, which set nothing outside."""


def setters() -> list[str]:
    """Return the ways to set X. A heredoc's lines belong to the line that begins it."""
    joined: list[str] = []
    is_inside = False
    for line in SETTERS.strip("\n").splitlines():
        if is_inside:
            joined[-1] += f"\n{line}"
            is_inside = line != (")" if "$(cat" in joined[-1] else "EOF")
            continue
        joined.append(line)
        is_inside = "<<EOF" in line
    return joined


def script(rng: random.Random, ways: Sequence[str]) -> str:
    """Return a script that sets X in one or two of the ways, at times within another construct."""
    parts = []
    for way in rng.sample(list(ways), rng.choice([1, 1, 2])):
        filled = way.replace("¤", str(rng.randint(1, 5))).replace("§", f"0.{rng.randint(101, 989)}")
        parts.append(rng.choice(WRAPPERS) % filled)
    return "\n".join(parts)


def by_bash(text: str, folder: Path) -> list[str]:
    """Return the values that launches of the script get for the key, as bash starts them.

    The script is one of ours, so it may run. Its `python3` prints its words.
    """
    program = folder / "python3"
    if not program.exists():
        program.write_text(PROGRAM, encoding="utf-8")
        program.chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", "-c", text + LAUNCH],
        cwd=folder,
        env={"PATH": f"{folder}:{os.defpath}", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.stdout.split("\0")[:-1]
