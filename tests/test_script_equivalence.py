"""Scripts under a seeded fuzz: what `bash SCRIPT` prints, starts, leaves and returns, the runner does on any slots.

`SCRIPTS=5000 python3 -m unittest tests.test_script_equivalence` runs so many scripts, each on 1, 2 or 4 slots;
`SCRIPT=17` runs the 17th alone, on all of these, and shows it, what it prints and how the runner differs; SCRIPT_SEED
makes others.

No script here has tests that depend on each other by files, nor a trace that differs from run to run under bash, nor
what docs/limits.md names under "Scripts": `$-`, `$_` behind a test, BASH_XTRACEFD, and what PS4 computes.
"""
from __future__ import annotations

import collections
import difflib
import functools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Counter, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from tests.support import SHED, WAIT_S, compiled_runner

SCRIPTS, ONE_SCRIPT = int(os.environ.get("SCRIPTS", "40")), os.environ.get("SCRIPT")
SEED = int(os.environ.get("SCRIPT_SEED", "20250101"))
ALL_FORMS = 100                  # scripts in which each form of the grammar comes up
SLOTS = (1, 2, 1, 4)
WORKERS = 2                      # scripts at once
DEEPEST = 3                      # of blocks in blocks
ENOUGH = 5                       # faults by which a broken runner is known well enough
LINES_IN = b"".join(b"line %d\n" % number for number in range(20))

# What a run of a script may say otherwise under the runner: in the environment of what it starts …
OWN_VARIABLE = re.compile(SHED.pattern + "|ONEAPI_.*|SHLVL")    # SHLVL: bash counts down where it execs
# … in a trace, of masks and of process ids, which bash tells of commands that die, too …
MASK = re.compile(rb"(?<= CUDA_VISIBLE_DEVICES=)\d$", re.MULTILINE)
# (of a block, bash names some line, not the command's)
PROCESS = re.compile(rb"(?<=: line )\d+: *\d+ |\b(wait |P\w+=)\d+")
# (of a subshell that ends with a test, bash names all, and the runner the test alone)
DEATH = re.compile(rb"(: line PID [A-Z][a-z]+(?: [a-z()]+)*  ) +(?:(?!\xe2\x86\x92).)*")
# … and, with several slots, in the runner's own lines.
BLOCK = re.compile(rb"^(?:Detected \d+ GPU\(s\):.*|>>> (?:Starting|Finished): .*(?:\n    .* \xe2\x86\x92 .*)?|"
                   rb"run_tests\.py: \d+ tests? ran while no other did; .*|"
                   rb"run_tests\.py: .*:\d+: \d+ commands? without `\|\| test_fail` may test something, too; .*|"
                   rb"run_tests\.py: .*: nothing ran in parallel: .*|"
                   rb"run_tests\.py: errors of tests go elsewhere .*)\n", re.MULTILINE)
REMARK = re.compile(rb"^\S.*: (?:writes the same JUnit file as an earlier test|this looks like a test of several GPUs)"
                    rb", .*\n", re.MULTILINE)
TOTAL = re.compile(rb"^\d+ tests? in [\d.]+s on [2-9] GPU.*\n\Z", re.MULTILINE)     # it ends a run on several slots
AHEAD = re.compile(rb"^run_tests\.py: the script has not come to tests that ran ahead of it: .*\n", re.MULTILINE)
# (it lands where the script has left a line open, of which the runner does not know)
ALONE = re.compile(rb"run_tests\.py: .*?: behind `.*` \(.*\) bash runs all by itself\n|"
                   rb"(?:qa dir/|\./|/[^\s\"']*/)?(?:test|more\d|lib|run_\w)\.sh:\d+: .* passed: without its JUnit "
                   rb"file \(.*\)\n")

# All the programs that the scripts start: it notes how it was called, does what its arguments say, and is quick.
STUB = r"""#!/bin/sh
name=${0##*/} status=0 quiet= open= death=
echo "start $name $*" >> "$STUB_LOG/events"
{ printf '%s\0' "$name" "$@"; printf '\001'; pwd -P; umask; cat "$STUBS/mark" "/proc/$$/environ" "$STUBS/mark" \
  "/proc/$$/status"; } > "$STUB_LOG/$$"
if [ "$name" = mpirun ]; then
  shift 2
  "$@"
  exit
fi
for word; do
  case $word in
    --exit=*) status=${word#*=} ;;
    --signal=*) death=${word#*=} ;;
    --quiet) quiet=1 ;;
    --open) open=1 ;;
    --err) echo "$name complains" >&2 ;;
    --both) printf '%s\n%s' "$name complains" unfinished >&2; echo "$name says" ;;
    --slow) sleep 0.03 ;;
    --beside=*) until grep -q "^start $name ${word#*=}" "$STUB_LOG/events"; do sleep 0.01; done ;;
    --gate) echo "$*" > "$UP"; read -r _ < "$GATE" ;;
    --needs=*) [ -e "${word#*=}" ] || status=9 ;;
    --echo=*) quiet=1; printf '%s\n' "${word#*=}" ;;
  esac
done
[ "$quiet" ] || printf '%s: %s' "$name" "$*"
[ "$quiet$open" ] || echo
echo "end $name $*" >> "$STUB_LOG/events"
[ ! "$death" ] || kill "-$death" $$
exit "$status"
"""
PROGRAMS = ("python3", "pip3", "mpirun", "cmake", "ctest", "pytest", "nvidia-smi", "torchrun")

# What scripts are made of: a rule, then its forms, one a line or with ¦ between them. «rule» stands for any form of
# that rule, § for a number of the form's own, ⏎ for the end of a line, ⇥ for a tab, ␣ for a blank at the end, ε for
# nothing; `3×` makes a form as frequent as three. Of the rules that may nest, the first form does not.
GRAMMAR = r"""
== script
«shebang»«options»⏎«error_exit»⏎«test_fail»⏎RET=0⏎FAILED_CASES=""⏎FAILED=()⏎«globals»«body»⏎«body»⏎«end»
3× «shebang»«error_exit»⏎«test_fail»⏎RET=0⏎FAILED_CASES=⏎FAILED=()⏎«options»⏎«globals»«body»⏎«body»⏎«body»⏎«end»
«options»⏎RET=0 FAILED_CASES= FAILED=()⏎. ./lib.sh⏎«globals»«body»⏎«body»⏎«end»
«shebang»«error_exit»⏎«options»⏎RET=0; FAILED_CASES=; FAILED=()⏎«test_fail»⏎main() {⏎«body»⏎«body»⏎}⏎main a 'b c'⏎«end»
«error_exit»⏎«test_fail»⏎RET=0⏎FAILED_CASES=⏎FAILED=()⏎«globals»set -x⏎«suite»⏎«end»
== suite
«suite_test»⏎«suite_test»⏎«suite_test»
«suite_test»⏎«suite_test»⏎«suite_test»⏎«suite_test»⏎«suite_test»⏎«suite_test»⏎export M§=1⏎«suite_test»⏎«suite_test»
pip3 install pytest==8.2.1 || error_exit "Failed to install pytest"⏎«suite_test»⏎«suite_test»⏎«suite_test»⏎«plain»
== suite_test
python3 -m pytest --tb=auto --junitxml=$XML_LOG_DIR/p§.xml $TE_PATH/tests/test_§.py «how» || test_fail "test_§.py"
NVTE_A=1 B="x y" python3 -m pytest $TE_PATH/tests/test_§.py «how» || test_fail "test_§.py"
NVTE_A=0 \⏎  python3 -m pytest -v -s $TE_PATH/t_§.py::T «how» \⏎  --tb=auto «how» || test_fail "t_§.py"
== shebang
#!/usr/bin/env bash⏎ ¦ #!/bin/bash⏎# Copyright: it's "free⏎⏎ ¦ # don't || test_fail "no"⏎ ¦ ε
== options
6× ε ¦ 3× set -x ¦ set -e ¦ set -ex ¦ set -u ¦ set -o pipefail ¦ set -euo pipefail ¦ set -eux ¦ set -xv
set -x⏎exec 2>&1 ¦ PS4='# '; set -x ¦ set -E; trap 'echo "ERR $?"' ERR ¦ set -e; trap 'echo "ERR $?"' ERR
exec > >(tee -a all.log) 2>&1 ¦ trap 'echo "bye $?"' EXIT
set -x; trap 'rm -f nothing; echo "bye $? $RET"' EXIT
shopt -s inherit_errexit; set -e ¦ shopt -s extglob nullglob ¦ shopt -s lastpipe
== error_exit
function error_exit() {⏎    echo "Error: $1"⏎    exit 1⏎}
error_exit() { echo "Error: $1" >&2; exit 3; }
function error_exit {⏎⇥echo "Error: $*"⏎⇥exit 1⏎}
== test_fail
4× function test_fail() {⏎    RET=1⏎    FAILED_CASES="$FAILED_CASES $1"⏎    echo "Error: sub-test failed: $1"⏎}
function test_fail() { RET=$((RET+1)); FAILED_CASES+=" $1"; echo "Error: sub-test failed: ${1-}"; }
test_fail() { FAILED+=("$1"); RET=1; printf 'Error: sub-test failed: %s\n' "$1"; }
test_fail() { RET=1; FAILED_CASES="$FAILED_CASES $1"; echo "Error: sub-test failed: $*" >&2; }
test_fail () {⏎  local status=$?⏎  RET=1⏎  echo "Error: sub-test failed: $1 with $status"⏎}
test_fail() { echo "$? $1" >> failures.txt; echo "Error: sub-test failed: $1"; RET=1; }
test_fail() { echo "Error: sub-test failed: $1"; ((RET++)); }
test_fail() { let RET+=1; FAILED[RET]=$1; echo "Error: sub-test failed: $1 ($#, $RET)"; }
test_fail() { RET=1; echo "Error: sub-test failed: $1" | tee -a failures.txt; }
test_fail() { RET=1; note "$1"; }; note() { FAILED_CASES="$FAILED_CASES $1"; echo "Error: sub-test failed: $1"; }
test_fail() { { set +x; } 2>/dev/null; RET=1; echo "Error: sub-test failed: $1"; set -x; }
test_fail() { echo "Error: sub-test failed: $1"; RET=1; return 1; }
test_fail() { echo "Error: sub-test failed: $1"; if [ "${STOP-}" ]; then exit 7; fi; RET=1; STOP=${RET#0}; }
test_fail() { echo "Error: sub-test failed: $1"; exit 4; }
test_fail() { echo "Error: sub-test failed: $1 in ${FUNCNAME[1]-} of ${BASH_SOURCE[1]-}"; RET=1; }
test_fail() { echo "Error: sub-test failed: $1 at line ${BASH_LINENO[0]}"; RET=1; }
test_fail() { RET=1; cat >> failures.txt <<< "$1"; cat <<END⏎Error: sub-test failed: $1⏎END⏎}
declare -A BY_NAME; test_fail() { BY_NAME[x$1]=$?; RET=${#BY_NAME[@]}; echo "Error: sub-test failed: $1"; }
test_fail() { printf '<%s' "$1"; echo ">" >&2; echo "Error: sub-test failed: $1"; RET=1; printf half; }
give_up() { exit $1; }; test_fail() { echo "Error: sub-test failed: $1"; [ -z "${STOP-}" ] || give_up 3; STOP=1; }
test_fail() (⏎  echo "Error: sub-test failed: $1"⏎  touch "failed_$?"⏎)
== globals
: ${TE_PATH:=/opt/te}⏎: "${XML_LOG_DIR:=xml}"⏎x=ex y="why not" ok=1 n=2⏎list=(a "b c" d)⏎«global»⏎
TE_PATH=${TE_PATH:-/opt/te} XML_LOG_DIR=xml; mkdir -p "$XML_LOG_DIR"; x='a b' y= ok=1 n=0; list=(a 'b c')⏎
export TE_PATH=/opt/te XML_LOG_DIR=${XML_LOG_DIR:-xml}⏎x=1 y=2 ok= n=3⏎list=(--lr=1)⏎«global»⏎«global»⏎
== global
ARGS=(-k "not slow" --tb=auto '' "*") ¦ set -- one "two words" three ¦ declare -i n; declare -A map=([k]="v w")
readonly FIXED="1 2"
export LD_LIBRARY_PATH=/opt/lib:${LD_LIBRARY_PATH-}
umask 027 ¦ declare -n ref=y ¦ IFS=, ¦ export OMP_X=1 NAME_§="it's \"quoted\"" ¦ export MULTI=$'two\nlines'
helper() { echo "helper $*"; }; export -f helper
== body
«test»⏎«statement» ¦ 2× «statement»⏎«test» ¦ «statement»⏎«statement» ¦ «test»⏎«test»⏎«test»
«test»⏎«test»⏎«plain»⏎«statement» ¦ «one»; «test»
== few
«test» ¦ «test»⏎«test» ¦ «statement» ¦ «plain»⏎«test» ¦ «test»⏎«plain»
== statement
3× «test» ¦ «plain» ¦ 3× «block» ¦ 6× «odd» ¦ 4× «loop» ¦ 3× «function» ¦ «late» ¦ «tree»
== test
25× «one»
«command» || test_fail «label»   # it's || test_fail "no"
«command» || test_fail «label»;
«command» <<EOF || test_fail «label»⏎python3 not ${x-} || test_fail "me"⏎EOF
== one
20× «run» || test_fail «label» ¦ 6× «command» || test_fail «label» ¦ 2× «command» \⏎  || test_fail «label»
«command» ||⏎  test_fail «label» ¦ «command»||test_fail «label» ¦ «command» || { test_fail «label»; ok=0; }
«command» || { echo "status $?"; test_fail «label»; } ¦ «command» || { test_fail «label»; exit 3; }
«command» || {⏎    # handler⏎    test_fail «label»⏎    y="changed §"⏎} ¦ «command» || test_fail «label» >&2
«command» || { test_fail «label» && ok=; } 2>/dev/null ¦ «command» || test_fail «label» > handler_§.txt
«command» || test_fail «label» || true ¦ «command» || test_fail «label» && echo "then §"
if «command»; then echo "fine §"; else test_fail «label»; fi
eval 'python3 evaled § --exit=1 || test_fail «name»'
== run
«command» && echo "passed §" ¦ echo "first §" && «command» ¦ «command» && «command» ¦ «command» || «command»
«calm» | tee "out_§.txt" ¦ «calm» 2>&1 | cat ¦ ! «command» ¦ ( «command» ) ¦ { «command»; } ¦ ( cd sub; «command» )
(cd sub && «command») ¦ { «command» && «command»; } ¦ «command» > out_§.txt ¦ «command» > "out_§.txt" 2>&1
«command» 2> nowhere/err.txt ¦ «command» < lib.sh ¦ «command» <<< "here $x" ¦ «command» 2>/dev/null ¦ «command» >&2
true ¦ false ¦ [ -f file_§ ] ¦ [[ $x == e* ]] ¦ (( n > 1 )) ¦ cd nowhere ¦ A§=$(python3 --quiet --exit=3)
eval "python3 evaled §" ¦ command python3 commanded § «how» ¦ env A§=1 python3 by_env «how»
timeout 50 python3 timed § «how» ¦ bash run_x.sh § ¦ bash ./run_x.sh $n ¦ ./run_x.sh "$y" ¦ sub/run_y.sh ¦ ./lib.sh
not_there --at=all ¦ bash -c 'helper §; exit 2' ¦ bash -c "echo hi §; exit $n" ¦ bash -c 'kill -SEGV $$'
mpirun -np 2 bash -c "echo hi; exit 1" ¦ mpirun -np 2 python3 ranked § «how» ¦ ./lib.sh/x
CUDA_VISIBLE_DEVICES=0 python3 masked § «how» ¦ A=1 CUDA_VISIBLE_DEVICES=0 B="x y" python3 masked § «how»
== command
6× «prefix»«program» «args» «how» ¦ 2× «program» «args» «how» ¦ python3 $TE_PATH/test_§.py «how»
python3 test_§.py --junitxml=$XML_LOG_DIR/p§.xml «how»
«prefix»python3 \⏎    «args» \⏎    «how»
== program
5× python3 ¦ 2× python3 -m pytest ¦ pip3 ¦ ctest ¦ cmake ¦ nvidia-smi ¦ "python3" ¦ "$STUBS/torchrun"
mpirun -np 2 pytest
== prefix
4× ε ¦ A=1␣ ¦ A=1 B="x y"␣ ¦ A=$x B="$y" C='it'\''s'␣ ¦ A§=1 \⏎  B=␣ ¦ PATH=$PATH:/nowhere␣ ¦ HOME=/nonexistent␣
A=$(echo sub)␣ ¦ LC_ALL=C␣ ¦ A+=more␣ ¦ IFS=:␣
== args
§ ¦ t_§.py ¦ t_§.py «arg» ¦ t_§.py «arg» «arg» ¦ t_§.py \⏎  «arg»
== arg
-k "not slow" ¦ $x ¦ "$x" ¦ "${x}" '$x' ¦ "$@" ¦ $* ¦ "$1" ¦ "${list[@]}" ¦ ${list[@]} ¦ "${list[0]}" "${#list[@]}"
"${ARGS[@]}" ¦ "${y:-default}" ¦ ${y:+--with-y} ¦ "$(echo "sub $x")" ¦ `echo back` ¦ $((n + 1)) ¦ "$((n * 2))"
"two⏎lines" ¦ $'a\tb\'c' ¦ {a,b}{1,2} ¦ *.txt ¦ t*/*.py ¦ "*" ¦ ~ ¦ ~/x ¦ 'it'\''s' ¦ "a \"quoted\" b"
"\$x" \$x \\ ¦ --opt="$TE_PATH/x y" ¦ "$#" "$0" ¦ "$?" ¦ "$RET" ¦ "${FAILED_CASES}" ¦ "${FAILED[@]}" ¦ "$ok"
"${ref-}" ¦ "${map[k]-}" ¦ "$UNSET" ¦ "${UNSET-}" ¦ "$PWD" ¦ "${OLDPWD-none}" ¦ "$i" ¦ "${i-}" ¦ "$SHLVL"
"${PIPESTATUS[0]}" ¦ "${FUNCNAME[0]-}" ¦ $LINENO ¦ "$IFS" ¦ -- a=b c+=d ¦ '# no comment' a#comment
== how
8× ε ¦ 5× --exit=«status» ¦ --exit=$n ¦ --exit=$((n % 2)) ¦ --signal=«signal» ¦ --open ¦ --open --exit=1 ¦ --err
--both ¦ --both --exit=2 ¦ --slow ¦ --slow --exit=5 ¦ --quiet ¦ --quiet --exit=1
== status
3× 1 ¦ 2 ¦ 3 ¦ 42 ¦ 77 ¦ 124 ¦ 126 ¦ 127 ¦ 130 ¦ 138 ¦ 255
== signal
SEGV ¦ ABRT ¦ KILL ¦ TERM ¦ INT ¦ HUP ¦ PIPE
== name
"t§" ¦ n§
== label
6× "t§" ¦ 3× "test_§.py" ¦ 'single § label' ¦ "$x on ${y}" ¦ "$TE_PATH/test_§.py" ¦ "same" ¦ plain_§ ¦ "a  b   §"
"glob * ? [a-z] §" ¦ *␣ ¦ "quo\"te §" ¦ "it's §" ¦ '"' ¦ "$RET §" ¦ "$FAILED_CASES §" ¦ "$(echo sub §)"
"`basename /x/y_§`" ¦ "${TE_PATH##*/} §" ¦ $x ¦ "cost \$5 §" ¦ ε ¦ "" ¦ "§" more words ¦ "$0 §" ¦ "status $? §"
"${UNSET-none} §" ¦ "$1 §" ¦ "ünïcödé §" ¦ "%s %d § \n" ¦ "§⏎second line" ¦ "-n" ¦ "${i-} §" ¦ "${list[@]} §"
"$(python3 --echo=said§) §" ¦ "; § | & ( )" ¦ $'tab\t§' ¦ "${FUNCNAME[0]-} §"
== plain
echo "plain §" ¦ echo "x=$x y=$y ok=$ok" ¦ echo -n "no end §" ¦ echo "warn §" >&2 ¦ printf '%s\n' "${list[@]}"
printf "half §" ¦ echo $? ¦ echo "$? $RET" ¦ echo "RET=$RET$FAILED_CASES" ¦ echo "${FAILED[@]}"
echo "${PIPESTATUS[@]}" ¦ echo "$(python3 --echo=inner§)" ¦ x="new §" ¦ x=$y ¦ x=$(echo "from sub §")
x=`python3 --echo=back§ «how»` ¦ y+=" more" ¦ n=$((n + 1)) ¦ ((n++)) ¦ let n=n+1 ¦ : $((n += 1)) ¦ export EX§=1
export x ¦ export -n x ¦ unset y; y= ¦ declare -x DX§="a b" ¦ list+=("§ §") ¦ list=() ¦ set -- "arg §" b ¦ set -f
set +f ¦ set -x ¦ builtin set -x ¦ { set +x; } 2>/dev/null ¦ set +x ¦ set -e ¦ set +e ¦ set +u ¦ set -o pipefail
shopt -s nullglob ¦ shopt -s extglob ¦ umask 077 ¦ IFS=$' \t\n' ¦ true ¦ false || true ¦ : ¦ ! true ¦ ! false
mkdir -p dir_§ ¦ touch file_§ ¦ ls ¦ ls nowhere_§ ¦ ls nowhere_§ || true ¦ date > /dev/null
cat failures.txt 2>/dev/null || true
cat out_*.txt 2>/dev/null ¦ echo * ¦ [ -d dir_1 ] && echo "there" ¦ test -e file_2 || echo "no file" ¦ cd sub
cd .. ¦ cd sub && echo "in sub" && cd .. ¦ cd "$(dirname "$0")" ¦ cd - > /dev/null ¦ pushd sub
pushd sub > /dev/null ¦ popd > /dev/null ¦ popd ¦ wait ¦ sleep 0.01 ¦ read -r line; echo "read $line"
read -r a b c < lib.sh
pip3 install foo_§ || error_exit "cannot install foo_§"
pip3 install foo_§ «how» || error_exit "cannot install foo_§"
pip3 install -q a_§ b_§ >/dev/null 2>&1 || { echo "no a_§"; exit 2; }
pip3 uninstall -y foo_§ || true ¦ nvidia-smi ¦ nvidia-smi --quiet || echo "no GPU" ¦ python3 not_a_test_§ «how»
python3 setup_§.py «how» && echo "set up" ¦ echo done_§; echo "and more" ¦ # a comment: don't || test_fail "it"
mkdir scratch_§; trap 'rm -r scratch_§; python3 cleanup_§ --quiet' EXIT
trap 'echo "bye $?"' EXIT ¦ trap 'echo "late bye $? $RET"; rm -f x' EXIT ¦ trap - EXIT ¦ trap 'echo "ERR $?"' ERR
«dark»trap 'echo usr' USR1; kill -USR1 $$ ¦ exec 3> third.txt; echo three >&3; exec 3>&-
[ "$RET" -eq 0 ] || echo "failures so far:$FAILED_CASES"
[ "$ok" ] && echo "ok so far" ¦ (( RET == 0 )) && echo "RET is 0" ¦ [[ -n $FAILED_CASES ]] && echo "some failed"
echo "a"; [ $RET -ne 9 ] && true; echo "b" ¦ export -f helper 2>/dev/null ¦ helper() { echo "other helper $1"; }
type -t helper python3 ¦ hash -r ¦ PS4='+ '
cat <<EOF⏎Don't run: python3 "x || test_fail "y"⏎$x `echo in document` $(echo "$RET")⏎EOF
cat <<'EOF'⏎python3 x || test_fail "$not"⏎EOF
cat <<-EOF⏎⇥⇥test_fail "tabs" || (⏎⇥EOF
cat > made_§.sh <<'EOF' && bash made_§.sh || test_fail "made_§"⏎echo "made §"⏎exit 3⏎EOF
== block
if [ ! -d dir_§ ]; then⏎  pip3 install x_§ «how» || error_exit "no x_§"⏎  «test»⏎fi
if [ "$RET" -eq 0 ]; then⏎«few»⏎else⏎«few»⏎fi
if [ $n -gt 1 ]; then «one»; else «one»; fi
if [[ $x == *e* ]]; then⏎«few»⏎elif [ -z "$y" ]; then⏎«few»⏎else⏎«few»⏎fi
if python3 probe_§ --quiet «how»; then⏎«few»⏎fi
if ! python3 probe_§ --quiet «how»; then⏎«few»⏎fi
if test_§=$(python3 --echo=v§); then «few»⏎fi
[ "$n" -gt 0 ] && {⏎«few»⏎} ¦ [ "$n" -gt 5 ] || {⏎«few»⏎} ¦ {⏎«few»⏎} ¦ { «one»; } > "block_§.txt" ¦ {⏎«few»⏎} 2>&1
{⏎«few»⏎} 2>&1 | cat ¦ {⏎«few»⏎} 2>&1 | tee block_§.txt ¦ (⏎«few»⏎) ¦ ( cd sub; «one» )
( set +e; «few»⏎exit $RET ) || test_fail "subshell §"
(⏎«few»⏎) 2>&1 | cat
if [ -n "$x" ]; then⏎«few»⏎fi > block_§.txt 2>&1
case $x in⏎  ex) «one» ;;⏎  a*|"1")⏎    «few»⏎    ;;⏎  *) «one»;;⏎esac
case "$n" in 2) «one»;; *) echo other;; esac
case $RET in⏎  0) echo "none yet"⏎     «one» ;;⏎  *) «test»⏎     echo "some" ;;⏎esac
out_§=$(⏎«few»⏎)⏎echo "$out_§" ¦ echo "$(«one»)" ¦ time_§() {⏎«few»⏎}; time_§ 2>&1
== loop
for i in 1 2 3; do python3 l§_$i.py --exit=$((i % 2)) || test_fail "l§ $i"; done
for i in a "b c"; do⏎  python3 "l§ $i" «how» || test_fail "$i on ${y}"⏎  «few»⏎done
for i in 1 2; do «one»; done
for i in "${list[@]}"; do⏎  A=$i python3 loop § "$i" «how» || test_fail "$i"⏎done
for i; do python3 pos § "$i" || test_fail "$i"; done
for i in "$@"; do «test»⏎done
for i in 1 2; do for j in x y; do⏎  python3 t_${i}_$j «how» --exit=$((i - 1)) || test_fail "$i$j §"⏎done; done
for i in $(echo 1 2); do⏎  «few»⏎done
for i in $(python3 --echo="p q"); do «one»; done
for i in r*.sh; do bash "$i" >/dev/null 2>&1 || test_fail "$i"; done
for i in t*/*.py; do⏎  python3 "$i" «how» || test_fail "$(basename $i)"⏎done
for i in $FAILED_CASES; do echo "again $i"; python3 again_$i || test_fail "again $i"; done
for ((i = 0; i < 3; i++)); do python3 c§_$i --exit=$i || test_fail "c§ $i"; done
for ((i=0; i<2; ++i)) do⏎«few»⏎done
i=0; while [ $i -lt 2 ]; do⏎  «test»⏎  i=$((i + 1))⏎done
i=0⏎while (( i < 3 )); do⏎  ((i += 1))⏎  [ $i -eq 2 ] && continue⏎  python3 w§_$i «how» || test_fail "w§_$i"⏎done
i=2; until [ $i -eq 0 ]; do python3 u§ $i || test_fail "u$i"; : $((i--)); done
while read -r i; do python3 r§ "$i" «how» || test_fail "r$i"; done < names.txt
while read -r i rest; do⏎  «few»⏎done <<EOF⏎one 1⏎two 2⏎EOF
while read -r i; do «one»; done < <({ echo a; python3 --echo=b; } 2>/dev/null)
{ cat names.txt; } 2>/dev/null | while read -r i; do python3 r§ $i «how» || test_fail "piped $i"; done
for i in 1 2 3; do python3 try_§ --exit=$((3 - i)) && break; «one»; done
for i in 1 2 3; do python3 b§ $i --exit=$((i / 2)) || { test_fail "b§ $i"; break; }; done
for i in 1 2; do «few»⏎done > loop_§.txt ¦ for i in 1 2; do «few»⏎done 2>&1 | cat
«dark»for i in 1 2; do python3 bg§_$i --quiet --exit=$((i - 1)) & done; wait
for i in "${!list[@]}"; do python3 k§ "$i" "${list[i]}" «how» || test_fail "${list[$i]} §"; done
for i in $x $RET; do «one»; done
while [ "$RET" -eq 0 ]; do «test»⏎RET=1; done
== function
f_§() {⏎  local what=$1 i=l⏎  python3 fn § "$what" "$@" «how» || test_fail "f $what"⏎}⏎f_§ a⏎f_§ "b c" d
function f_§ {⏎  «few»⏎}⏎f_§ 1⏎f_§ 2 ¦ f_§() { «few»⏎}; f_§ x || echo "f_§ said $?"
f_§() { python3 fr§ "$1" «how» || { test_fail "$1"; return 3; }; echo "$1 is fine"; }⏎f_§ a || true⏎f_§ b || ok=
run_§() { echo "run $*"; "$@"; }⏎run_§ python3 by_fn_§ «how» || test_fail "r§"⏎run_§ python3 again_§ || test_fail "q§"
set_§() { x="by fn"; python3 set_§ «how»; }⏎set_§ || test_fail "set_§"⏎echo "$x"
cnt_§() { n=$((n + 1)); return $((n % 2)); }⏎cnt_§ || test_fail "cnt §"⏎cnt_§ || test_fail "cnt again §"⏎echo $n
loc_§() { local x="local $1" TE_PATH=/loc list=(z); «few»⏎}; loc_§ §
rec_§() { [ $1 -le 0 ] && return; python3 rec§_$1 --exit=$(($1 % 2)) || test_fail "rec$1"; rec_§ $(($1 - 1)); }; rec_§ 3
sub_§() (⏎  cd sub⏎  «test»⏎)⏎sub_§ ¦ quiet_§() { «test»⏎} >/dev/null; quiet_§
if_§() { «test»⏎return 0; }; if if_§; then echo "yes §"; else echo "no §"; fi
def_§() { inner_§() { «test»⏎}; inner_§; }; def_§; inner_§
pipe_§() { «test»⏎}; pipe_§ 2>&1 | cat ¦ args_§() { shift; «test»⏎}; args_§ a b "c d"
both_§() { «test»⏎«test»⏎}; both_§ && both_§ ¦ opt_§() { local -; set +x; «test»⏎}; opt_§
== late
«dark»python3 bg_§ --quiet & PID=$!⏎«test»⏎wait $PID || test_fail "bg_§"
«dark»python3 a§ --quiet --exit=1 & P1=$!⏎python3 b --quiet & P2=$!⏎wait $P1 || test_fail "a§"⏎wait $P2 || test_fail "b"
«dark»sleep 0.05 &⏎«test»⏎wait⏎«test»
«dark»(python3 bg_§ --quiet; exit 3) &⏎wait $! || test_fail "bg_§"
«dark»python3 bg_§ --quiet --exit=4 &⏎pids="$!"⏎«test»⏎for p in $pids; do wait $p || test_fail "late §"; done
«dark»«one» &⏎wait
«dark»{ python3 g§ --quiet || test_fail "g§"; } & wait
== odd
. ./more1.sh ¦ source more2.sh arg "two words" ¦ source ./more1.sh || test_fail "more1" ¦ . ./more2.sh > more.txt
for i in 1 2; do . ./more1.sh; done ¦ [ -f more1.sh ] && . ./more1.sh ¦ test_fail "by hand §"
python3 odd_§ --exit=6; s=$?; [ $s -eq 0 ] || test_fail "odd_§ $s"
python3 odd_§ «how» && true ¦ python3 odd_§ --exit=1 || RET=1 ¦ python3 odd_§ «how» || exit_code=$?
python3 odd_§ «how» || ok=0⏎[ "$ok" ] || echo "not ok"
python3 odd_§ «how» || (echo "sub"; exit 1) || test_fail "odd_§"
r=0; python3 odd_§ «how» || r=$?; echo "r=$r"
if [ "$RET" -gt 2 ]; then echo "too many"; exit 1; fi
[ $RET -le 3 ] || exit 9 ¦ if [ $RET -ne 0 ]; then⏎  «test»⏎  exit 1⏎fi
test_fail() { RET=5; echo "Error: sub-test failed: new $1"; }
old_fail() { test_fail "$@"; }; python3 odd_§ --exit=1 || old_fail "old §"
fail() { echo "own handler: $1"; RET=1; }; python3 odd_§ --exit=1 || fail "own §"
x=1 y=2 python3 odd_§ $x «how» || test_fail "odd §"
X§=outer; export X§; f() { local X§=inner; python3 odd_§ $X§ «how» || test_fail "$X§"; }; f
declare -r RO_§=1; python3 odd_§ $RO_§ «how» || test_fail "ro"
unset -f helper; helper x || test_fail "no helper"
exit_§() { exit $1; }; ( exit_§ 4 ) || test_fail "exit §"
set -- a b; shift; «test» ¦ read -r line; python3 "$line" «how» || test_fail "$line"
while read -r i && [ "$i" != "line 4" ]; do «one»; done
OPTIND=1; while getopts ab: o -a -b v; do «test»⏎done
mapfile -t lines < names.txt; for i in "${lines[@]}"; do «test»⏎done
select_§=1; [ $select_§ = 1 ] && «test» ¦ set -e; «test»⏎false⏎echo "not reached"
set -e⏎«test»⏎[ -f nothing_§ ]⏎echo "not reached either"
set -e⏎«test»⏎[ -f nothing_§ ] && echo "no"⏎«test»⏎set +e
set -u⏎«test»⏎echo "$NOT_SET_§"⏎echo "not reached"
exec 4>&1; «test»⏎exec 4>&- ¦ exec > rest_§.txt; «test»⏎exec >&2
trap 'echo "ret"' RETURN; «test»⏎trap - RETURN
«dark»kill -TERM $$; echo "not reached"
nested() { test_fail "$1 nested"; }; python3 odd_§ --exit=2 || nested "n§"
python3 odd_§ "$(«command»)" || test_fail "subst §"
echo "$(python3 in_§ «how» || test_fail "in a substitution")"
{ echo "a$(echo b)c"; } 2>/dev/null | grep -q b || test_fail "grep §"
«one» 3>&1
«dark»coproc read -r go; echo go >&${COPROC[1]}; wait $! 2>/dev/null
[ -t 0 ] || «test» ¦ «test»⏎echo "$? after" ¦ «test»⏎echo "$x$?"; «test»
a=("$x" "$y"); «test»⏎a=(); «test»⏎echo "${#a[@]}"
== tree
if true; then⏎  for i in 1 2; do⏎    if [ $i -eq 2 ]; then⏎      «test»⏎    else⏎      «few»⏎    fi⏎  done⏎fi
for i in x y; do case $i in x) «one» ;; *) «few»⏎;; esac; done
t_§() { for i in "$@"; do { «test»⏎} || return; done; }; t_§ 1 2
while true; do «few»⏎break; done ¦ if [ $n ]; then { «few»⏎}; fi
== end
3× exit $RET
5× if [ "$RET" -ne 0 ]; then⏎  echo "Error in the following test cases:$FAILED_CASES"⏎  exit 1⏎fi⏎echo "All passed"
ε ¦ [ $RET -eq 0 ] || exit 1
echo "RET=$RET failed:$FAILED_CASES"; exit $RET
exit ¦ exit $((RET > 0)) ¦ test $RET -eq 0 ¦ (( RET == 0 )) && echo ok ¦ echo "${#FAILED[@]} failed: ${FAILED[*]-}"
[[ -z $FAILED_CASES ]] ¦ cat failures.txt 2>/dev/null; exit $RET ¦ echo -n "no end of the line" ¦ «test»
«test»⏎exit ¦ exec python3 last_§ «how»
== dark
{ set +x; } 2>/dev/null;␣
== calm
«prefix»«program» «args» ¦ «prefix»«program» «args» --exit=«status» ¦ «program» «args» --err
"""


class Case(NamedTuple):
    """A script with the files beside it; its name is where it lies and how it is called."""

    name: str
    files: Mapping[str, str]


class Trace(NamedTuple):
    """What can be told of one run of a script."""

    code: int
    out: bytes
    calls: Counter[bytes]                # how each program was called
    tree: Mapping[str, bytes]            # files that it left
    events: Sequence[str]                # `start python3 a`, `end python3 a` …, in order

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "surrogateescape")


@functools.lru_cache(maxsize=None)
def grammar() -> Mapping[str, Sequence[str]]:
    """Rules and their forms, each as often as it weighs."""
    rules: Dict[str, List[str]] = {}
    for piece in re.split("\n| ¦ ", GRAMMAR.strip("\n")):
        if piece.startswith("== "):
            forms = rules[piece[3:]] = []
        else:
            weight, form = re.fullmatch(r"(?:(\d+)× )?(.*)", piece).groups()      # type: ignore[union-attr]
            forms += [form.replace("⏎", "\n").replace("⇥", "\t").replace("␣", " ").replace("ε", "")] * int(weight or 1)
    return rules


PIPED = re.compile(r"\| ((?:cat|tee|grep)\b[^|;&\n]*?)(?= *(?:$|[|;&\n]))")
NESTING = ("block", "loop", "function", "late", "odd", "tree")


class Maker:
    """Makes scripts, each with what it sources and runs.

    A rule is a deck of its forms, which is shuffled anew when it is used up: so none is left out.
    """

    def __init__(self, seed: int) -> None:
        self.dice, self.number = random.Random(seed), 0
        self.decks: Dict[str, List[str]] = {rule: [] for rule in grammar()}
        self.unused: Set[Tuple[str, str]] = {(rule, form) for rule, forms in grammar().items() for form in forms}

    def grow(self, rule: str, depth: int = 0) -> str:
        """Some form of a rule, in which nothing is left to be filled in."""
        depth += rule in NESTING
        rule = "test" if depth > DEEPEST and rule in ("statement", "few", *NESTING) else rule
        deck = self.decks[rule]
        if not deck:
            deck += grammar()[rule]
            self.dice.shuffle(deck)
        form = deck.pop()
        self.unused.discard((rule, form))
        if "§" in form:
            self.number += 1
            form = form.replace("§", str(self.number))
        return re.sub("«(\\w+)»", lambda match: self.grow(match.group(1), depth), form)

    def make(self) -> Case:
        """The next case."""
        self.number = 0
        name = self.dice.choice(["test.sh", "test.sh", "test.sh", "./test.sh", "qa dir/test.sh", "{root}/test.sh"])
        script = self.grow("script") + self.dice.choice(["", *["\n"] * 9])
        files = {f"more{number}.sh": "".join(
            self.grow(rule, DEEPEST) + "\n" for rule in self.dice.choices(["test", "test", "plain"], k=number + 1))
            for number in (1, 2)}
        files["run_x.sh"] = f"#!/bin/bash\necho \"run_x $*\"\n{self.grow('command', DEEPEST)}\nexit ${{1:-0}}\n"
        files["sub/run_y.sh"] = "#!/bin/sh\necho run_y\nexit 3\n"
        files["lib.sh"] = f"{self.grow('error_exit')}\n{self.grow('test_fail')}\n"
        files.update({"names.txt": "one\ntwo\n", "tests/a.py": "", "tests/b.py": ""})
        files["all.log"] = ""  # which `tee` would make just before or after a glob
        return Case(name, tamed({**files, name.replace("{root}/", ""): script}))


def tamed(files: Mapping[str, str]) -> Mapping[str, str]:
    """The files without what bash itself does not do in the same order each time, or never ends."""
    text = "\n".join(files.values())
    changes = []
    if re.search(r"\bset -\w*x", text):                 # it shows both ends of a pipe at once
        changes.append((PIPED, r"| { \1; } 2>/dev/null"))
    if re.search(r"\bwait *$", text, re.MULTILINE):     # for `tee` too
        changes.append((re.compile(r"exec > >\(.*\) "), "exec "))
    for pattern, new in changes:
        files = {name: pattern.sub(new, text) for name, text in files.items()}
    return files


def masked(data: bytes, root: bytes) -> bytes:
    """Some output without what differs from run to run."""
    return DEATH.sub(rb"\1", PROCESS.sub(rb"\1PID ", MASK.sub(b"", data.replace(root, b"/ROOT"))))


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def events_of(folder: str) -> List[str]:
    """When each program began and ended, in order, but for what the runner asks of GPUs."""
    text = read(os.path.join(folder, "events")).decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if "--query-gpu" not in line]


def calls_of(folder: str, root: bytes) -> Iterator[bytes]:
    """How each program was called: its words, folder, mask, environment and ignored signals."""
    for name in filter(str.isdigit, os.listdir(folder)):
        words, environ, status = read(os.path.join(folder, name)).split(b"\n@@mark@@\n")
        variables = sorted(item for item in environ.split(b"\0")
                           if not OWN_VARIABLE.fullmatch(item.partition(b"=")[0].decode("utf-8", "replace")))
        ignored = re.findall(rb"^SigIgn:\s*(.*)$", status, re.MULTILINE)
        # Without signals 32 and 33, the C library's own: GNU make ignores them, and threads in Python change that.
        signals = [b"ignores %x" % (int(bits, 16) & ~(3 << 31)) for bits in ignored]
        if b"--query-gpu" not in words:  # that is the runner's own
            yield b" | ".join([words, *variables, *signals]).replace(root, b"/ROOT")


def tree_of(folder: str) -> Dict[str, bytes]:
    """The files in a folder; JUnit files and their folder are the runner's to fix."""
    paths = [os.path.join(at, name) for at, folders, names in os.walk(folder) for name in [*folders, *names]]
    return {os.path.relpath(path, folder): b"(folder)" if os.path.isdir(path) else read(path)
            for path in paths if not path.endswith("xml")}


def without_blocks(out: bytes, plain: bytes) -> bytes:
    """The output on several slots without the runner's own lines.

    Before these it ends a line that the script has left open. Whether it did, the plain output tells.
    """
    pieces = [REMARK.sub(b"", piece) for piece in BLOCK.split(out)]
    ends = {0: b""}                      # how far the pieces so far reach in the plain output, and what they are
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        ways = {piece} if is_last or not piece.endswith(b"\n") else {piece, piece[:-1]}
        reached = {at + len(way): text + way for at, text in ends.items() for way in ways if plain.startswith(way, at)}
        if not reached:                  # a mismatch, which is to be shown
            return max(ends.values(), key=len) + b"".join(pieces[number:])
        ends = reached
    return ends.get(len(plain), max(ends.values(), key=len))


class EquivalenceCase(unittest.TestCase):
    """Runs scripts under bash and under the runner, in folders of their own with stubs on PATH."""

    maxDiff = None

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="run_tests.")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        # Programs are written by one thread while another forks, whose child holds them open: "Text file busy".
        self.lock = threading.Lock()
        limits = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, limits[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_CORE, limits)
        # A shell starts its background jobs with these ignored; what bash and the runner make of it differs.
        for signum, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
            self.addCleanup(signal.signal, signum, signal.signal(signum, handler))

    def runner(self) -> List[str]:
        """Without `site`, which takes as long as bash and its script."""
        return [sys.executable, "-S", compiled_runner()]

    def run_case(self, case: Case, slots: Optional[int], changes: Mapping[str, Any] = {}) -> Trace:  # noqa: B006
        """Run a script in a fresh folder, under bash or the runner; `changes` are of its environment."""
        root = tempfile.mkdtemp(dir=self.folder)
        work, logs = os.path.join(root, "work"), os.path.join(root, "logs")
        for name in ("bin", "calls", "home", "tmp", "work/sub/xml", "work/tests", "work/xml", "work/qa dir"):
            os.makedirs(os.path.join(root, name))
        files = {f"work/{name}": text for name, text in case.files.items()}
        files.update({"bin/mark": "\n@@mark@@\n", "bin/python3": STUB, "calls/events": ""})
        for name, text in files.items():
            with self.lock, open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text.replace("{root}", work))
            os.chmod(file.name, 0o755 if re.search(r"run_|bin/python3", name) else 0o644)
        for name in PROGRAMS[1:]:
            os.link(os.path.join(root, "bin/python3"), os.path.join(root, "bin", name))
        environment = {
            "PATH": f"{root}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": f"{root}/home", "TMPDIR": f"{root}/tmp",
            "LC_ALL": "C.UTF-8", "STUBS": f"{root}/bin", "STUB_LOG": f"{root}/calls", "FROM_OUTSIDE": "a  b\n c",
            "XML_LOG_DIR": f"{work}/xml", "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(slots or 1))), **changes}
        command = ["bash"]
        if slots is not None:
            command = [*self.runner(), "--log-dir", logs]
        with self.lock:
            process = subprocess.Popen(
                [*command, case.name.replace("{root}", work)], cwd=work, start_new_session=True, stdin=subprocess.PIPE,
                env={name: value for name, value in environment.items() if value is not None},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            out, _ = process.communicate(LINES_IN, timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out = process.communicate()[0] + b"\nIT HANGS\n"
        out = TOTAL.sub(b"", out)
        here = os.fsencode(root)
        ran = Trace(process.returncode if process.returncode >= 0 else 128 - process.returncode, masked(out, here),
                    collections.Counter(calls_of(os.path.join(root, "calls"), here)),
                    {name: masked(data, here) for name, data in tree_of(work).items()},
                    events_of(os.path.join(root, "calls")))
        shutil.rmtree(root, ignore_errors=True)
        return ran

    def faults(self, plain: Trace, ran: Trace, slots: int) -> Iterator[str]:
        """What differs between a run by bash and one by the runner.

        Tests that it has started ahead of the end of the script are more than bash runs, and may leave files.
        """
        if b" went ahead of " in ran.out and ran.code:       # it is not certain, and says so
            return
        out, has_ended = AHEAD.subn(b"", ALONE.sub(b"", ran.out))
        ran = ran._replace(out=out)
        out = ran.out if slots == 1 else without_blocks(ran.out, plain.out)
        if out != plain.out and (slots == 1 or out.rstrip(b"\n") != plain.out.rstrip(b"\n")):
            yield "output:\n" + diff(plain.out, out)
        if ran.code != plain.code:
            yield f"exit status {ran.code} instead of {plain.code}"
        for what, calls in (("more", ran.calls - plain.calls), ("fewer", plain.calls - ran.calls)):
            if calls and not (has_ended and what == "more"):
                yield f"{what} calls:\n" + "\n".join(f"  {call!r}" for call in calls.elements())
        for name in sorted({*ran.tree, *plain.tree}):
            if ran.tree.get(name) != plain.tree.get(name) and not has_ended:
                yield f"file {name}: {ran.tree.get(name)!r} instead of {plain.tree.get(name)!r}"


class ScriptEquivalence(EquivalenceCase):
    """Each script runs under bash and under the runner; a difference names its number."""

    def check(self, number: int, case: Case) -> Tuple[List[str], int]:
        """The faults of a script, and how many tests it had on slots at once."""
        plain = self.run_case(case, None)
        text = "\n".join(f"---- {name}\n{case.files[name]}" for name in sorted(case.files)
                         if re.search(r"more|run_x|lib|test\.sh", name)) + f"\n---- run as: {case.name}"
        if ONE_SCRIPT:
            print(f"{text}\n---- plain, exit {plain.code}\n{plain.text}")
        faults, started = [], 0
        for slots in (1, 2, 4) if ONE_SCRIPT else (SLOTS[number % 4],):
            ran = self.run_case(case, slots)
            started += len(re.findall(rb"^>>> Starting: ", ran.out, re.MULTILINE))
            found = [fault if len(fault) < 3000 else fault[:3000] + "\n  …" for fault in self.faults(plain, ran, slots)]
            if found:
                faults.append(f"SCRIPT={number} on {slots} slot(s)\n" + "\n".join(found))
            if ONE_SCRIPT:
                print(f"---- {slots} slot(s), exit {ran.code}\n{ran.text}")
        return [*faults, text] if faults else [], started

    def test_random_scripts(self) -> None:
        """Byte for byte the same on one slot; on several, once the runner's own lines are taken out."""
        maker = Maker(SEED)
        cases = [(number, maker.make()) for number in range(1, int(ONE_SCRIPT or SCRIPTS) + 1)]
        faults: List[List[str]] = []
        started = 0
        with ThreadPoolExecutor(WORKERS) as pool:
            checks = [pool.submit(self.check, *case) for case in (cases[-1:] if ONE_SCRIPT else cases)]
            for check in checks:
                if len(faults) >= ENOUGH and check.cancel():
                    continue
                found, tests = check.result()
                faults, started = [*faults, *[found] * bool(found)], started + tests
        if faults:
            self.fail(f"\nat least {len(faults)} scripts differ\n" + "\n\n".join(sum(faults, [])))
        if len(checks) >= ALL_FORMS:
            self.assertEqual(maker.unused, set())
        if not ONE_SCRIPT:                       # else there is not much in what has been compared
            self.assertGreater(started, len(checks) / 2)

    def test_taking_out(self) -> None:
        """The runner's own lines go, with the end of a line that it has added, and nothing else does."""
        block = ">>> Starting: a on GPU 0\n>>> Finished: a on GPU 0 [failed]\n    x \u2192 a.log\n".encode()
        for plain in (b"", b"a\nb", b"a\n\n\nb\n", b"a>>> x\nb\n"):
            for cut in range(len(plain) + 1):
                head = plain[:cut]
                broken = head + (b"" if not head or head.endswith(b"\n") else b"\n")
                out = b"Detected 2 GPU(s): 0 1\n" + broken + block + plain[cut:]
                self.assertEqual(without_blocks(out, plain), plain)
                self.assertNotEqual(without_blocks(out + b"x", plain), plain)
                alone = b"run_tests.py: test.sh: behind `test_fail a` (test.sh:1) bash runs all by itself\n"
                ran = Trace(0, head + alone + plain[cut:], collections.Counter(), {}, ())
                for slots in (1, 2):
                    self.assertEqual(list(self.faults(ran._replace(out=plain), ran, slots)), [])


def diff(wanted: bytes, got: bytes) -> str:
    """The lines that differ."""
    one, other = ([repr(line)[2:-1] for line in data.splitlines(keepends=True)] for data in (wanted, got))
    return "\n".join(difflib.unified_diff(one, other, "bash", "runner", lineterm="", n=2))


if __name__ == "__main__":
    unittest.main()
