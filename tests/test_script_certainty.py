"""Failures in scripts under a seeded fuzz: none is lost, and none is blamed on another, on any slots.

`CERTAIN=1000 python3 -m unittest tests.test_script_certainty` runs so many scripts, each on 1, 2 or 4 slots;
`CERTAIN_SCRIPT=17` runs the 17th alone, on all of these, and shows it; CERTAIN_SEED makes others.

A *reaction* is what a script says about a failure, in a line or the end of a line from an `@` on. On one slot all that
is printed and left is bash's. On several the exit status and the reactions are, in their order. If not, the runner says
which test went ahead of which command behind a failure; then its exit status is not 0.
"""
from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import AbstractSet, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from run_tests import shell_status
from tests.support import compiled_runner
from tests.test_script_equivalence import BLOCK, ENOUGH, WORKERS, EquivalenceCase, diff, tree_of

SCRIPTS, ONE_SCRIPT = int(os.environ.get("CERTAIN", "40")), os.environ.get("CERTAIN_SCRIPT")
SEED = int(os.environ.get("CERTAIN_SEED", "20250101"))
SLOTS = (4, 2, 4, 1)                     # each script on one of these
HANG_S = 60.0                            # a script takes milliseconds
AHEAD = b"went ahead of"
ONE_IN = 50                              # scripts in which a test may go ahead of such a command
REACTION = re.compile(rb"@.*")
# What the runner says besides: of `#!/bin/bash -e`, of what it took for tests, of what ran alone or too early.
REMARK = re.compile(
    rb"^run_tests\.py: .*(?:does not count, as under|looks? like (?:tests|a test of)|has not come to tests|"
    rb"without `\|\| test_fail` may test something|ran while no other did|nothing ran in parallel|"
    rb"runs all by itself).*\n|"
    rb"^\d+ tests? in [\d.]+s on .*\n", re.MULTILINE)

# All the programs: they say how they were called, and end as they are told to.
PROGRAMS = ("pytest", "python3", "ctest")
STUB = r"""#!/bin/sh
status=0 quiet=
for word; do
  case $word in --exit=*) status=${word#*=} ;; --slow) sleep 0.03 ;; --quiet) quiet=1 ;; esac
  # For as long as it takes that one ahead of it has begun.
  for i in 1 2 3 4 5 6 7 8; do [ "$word" != --late ] || [ -e made ] || sleep 0.05; done
done
[ "$quiet" ] || echo "${0##*/}: $*"
exit "$status"
"""

# As in test_script_equivalence: a rule, then its forms, one a line or with ¦ between them; `3×` makes one as frequent
# as three, «rule» stands for any form of it, § for a number, ⏎ for the end of a line, ε for nothing. ‡ is where a test
# may be told to fail.
GRAMMAR = r"""
== script
«first»⏎«options»⏎«handler»⏎«globals»⏎«body»⏎«end» ¦ «first»⏎«options»⏎«globals»⏎«handler»⏎«body»⏎«body»⏎«end»
«first»⏎«handler»⏎«globals»⏎«options»⏎main() {⏎«body»⏎}⏎main one 'two words'⏎«end»
«first»⏎«options»⏎«globals»⏎«handler»⏎if main() { «body»⏎}; main uno due; then echo "@ main is fine"; fi⏎«end»
3× «short»⏎«test»⏎«end» ¦ 3× «short»⏎«test»⏎«read»⏎«end» ¦ 2× «short»⏎«test»⏎«test»⏎«end»
== short
5× #!/bin/bash⏎«globals»⏎test_fail() { «effect»; } ¦ #!/bin/bash⏎«globals»⏎test_fail() { «effect»; «last»; }
«options»⏎«globals»⏎«handler» ¦ #!/bin/bash⏎«globals»⏎test_fail() { «said»; «last»; }
«options»⏎«globals»⏎. ./handler.sh
== first
3× #!/bin/bash ¦ #!/bin/bash -e ¦ #!/bin/bash -eu ¦ ε
== options
9× ε ¦ 3× set -e ¦ set -u ¦ set -o pipefail ¦ set -euo pipefail ¦ set -o posix ¦ set +T ¦ FUNCNEST=20 ¦ set -E
shopt -u extdebug ¦ trap 'echo "@ ERR $?"' ERR ¦ set -e; trap 'echo "@ ERR $?"' ERR ¦ set -E; trap 'RET=1' ERR
trap 'echo "@ bye $? $RET"' EXIT ¦ trap 'rm -f lock; exit $RET' EXIT ¦ trap 'e=$?; echo "@ end $e"; exit $e' EXIT
exec 200>lock ¦ exec 201>«file» ¦ shopt -s lastpipe ¦ shopt -s inherit_errexit ¦ set -e; trap 'exit $((RET + 3))' ERR
== file
x ¦ lock.txt ¦ sub/x
== globals
4× RET=0 FAILS=0 N=0 FAILED=() v=RET NAME=none i=0; unset F OK ¦ RET=0; FAILS=0; v=RET; NAME=; declare -i N=0
RET=0 FAILS=0 N=0 FAILED= v=FAILS NAME=x; export RET ¦ declare -i RET=0 FAILS=0 N=0; FAILED=(); v=N NAME=y
RET=0⏎FAILS=0⏎N=0⏎v=F⏎RANDOM=42 ¦ RET=0 FAILS=0 N=0 v=FAILED; declare -A FAILED=() ¦ RET=0 FAILS=0 N=0 v=RET; set -a
== handler
4× test_fail() { «effect»; } ¦ 4× test_fail() {⏎  «effect»⏎  «effect»⏎} ¦ test_fail() { «effect»; «effect»; «last»; }
test_fail() { «said»; «last»; } ¦ function test_fail { «said»; RET=1; «last»; } ¦ test_fail() { «effect»; «last»; }
test_fail() { note "$@"; }; note() { «effect»; } ¦ test_fail() { local s=$?; «effect»; echo "@ status $s"; }
test_fail() { if [ $? -gt 2 ]; then «effect»; else «said»; RET=7; fi; } ¦ test_fail() { «effect»; } 2>/dev/null
test_fail() { echo "@ $1" >> seen.txt; «set»; } ¦ test_fail() { «set»; echo "@ $1 $RET" | tee -a seen.txt; }
test_fail() { «said»; RET=1; test_fail() { echo "@ again $1"; RET=2; }; } ¦ . ./handler.sh
== effect
6× «said»; «set» ¦ «set»; «said» ¦ 2× «set»
== said
2× echo "@ no $1" ¦ echo "@ no $1 $RET" ¦ local msg="no $1 $?"; failed=1; echo "@ $msg" ¦ echo "@ $1 in ${PWD##*/}"
echo "@ $1 by ${NAME-} $i" ¦ printf '@ %s\n' "$@" ¦ echo "@ $? $*" ¦ echo "@ $1 from ${FUNCNAME[1]-}" >&2
echo "@ $1 turn ${i-} of ${what-}" ¦ echo "@ $# $1 ${N-} ${F-}" ¦ echo "@ $1" >> seen.txt; echo "@ $(wc -l < seen.txt)"
set -- "x $1"; echo "@ $1" ¦ cat <<< "@ here $1" ¦ echo "@ ${FAILED[*]-} then $1"
== set
3× RET=1 ¦ local n=$RET; RET=$((n+1)) ¦ 6× : $((++N)) ¦ 5× : ${F:=1} ¦ 4× local -n r=RET; r=1 ¦ printf -v RET 1
printf -v "$v" %s 1 ¦ 8× ((FAILS++)) ¦ read -r RET <<< 1 ¦ eval "RET=1" ¦ eval "$v=1" ¦ declare -g RET=1 ¦ RET+=1
FAILED+=("$1") ¦ FAILED[FAILS]=$1; FAILS=$((FAILS+1)) ¦ export RET=1 ¦ let RET+=1 ¦ ((RET+=1)) ¦ ((RET|=$?))
cd sub 2>/dev/null || cd ..; RET=1 ¦ trap 'echo "@ late $RET"; exit $RET' EXIT; RET=4 ¦ OK=no RET=1 ¦ set -u; RET=1
later() { echo "@ defined for $RET"; }; RET=5 ¦ note_it() { RET=1; }; note_it ¦ touch failed.mark; RET=1 ¦ set +e; RET=1
declare -gx F=1 ¦ F="$F $1" ¦ let ++FAILS ¦ NAME="after $1" RET=1 ¦ unset NAME; RET=1 ¦ RET=$(($RET + 1))
mapfile -t FAILED <<< "$1"; RET=1 ¦ RET=$(expr $RET + 1) ¦ RET=${1:+1} ¦ i=9 RET=1 ¦ exec 201>«file»; RET=1
== last
4× [ -n "${CI-}" ] && echo ci ¦ ((FAILS++)) ¦ return 1 ¦ exit 3 ¦ [ $RET -lt 2 ] || exit 6 ¦ true ¦ return $RET ¦ exit
[[ -n ${STOP-} ]] && exit 8; STOP=1 ¦ false ¦ local x=$(false) ¦ trap 'echo "@ set by $RET"' EXIT ¦ set -e ¦ set +e
== body
«part»⏎«part»⏎«read»⏎«part» ¦ «part»⏎«read»⏎«part»⏎«part»⏎«read» ¦ «test»⏎«part»⏎«test»⏎«other»
«test»⏎«read»⏎«test»⏎«test»⏎«part» ¦ «other»⏎«part»⏎«test»⏎«other»
== part
5× «test» ¦ 3× «form» ¦ 2× «loop» ¦ 2× «other» ¦ «test»⏎«read» ¦ «switch»
== test
9× «run» || test_fail «label» ¦ «run» || test_fail "same"; «run» || test_fail "other §" ¦ «run» || note_fail "n §"
pytest twice ‡ || test_fail "one §"; pytest twice ‡ || test_fail "two §" ¦ NAME=named§; «run» || test_fail "$NAME"
2× «run» || { echo "@ no $i $?"; RET=1; } ¦ «run» || { test_fail «label»; F=1; } ¦ «run» || test_fail «label» || true
«run» || test_fail «label» && echo "@ then §" ¦ echo -n "a§ ... "; «run» || test_fail «label»
echo -n "§ "⏎«run» || RET=1 ¦ i=§; «run» || test_fail "at $i" ¦ i=§⏎«run» || test_fail at
cd sub; «run» || test_fail «label»⏎cd .. ¦ «run» && echo ok§ ¦ «run» || { test_fail «label»; exit 5; }
«run» || { note_fail "§"; false; } ¦ «run» || { echo "@ $1 §"; ((FAILS++)); }
== run
9× «program» t§ ‡ ¦ A=$i «program» t§ ‡ ¦ «program» "t§ @ $RET" ‡ ¦ «program» t§ ${FAILED[@]+"@ ${FAILED[@]}"} ‡
«program» t§ ‡ --slow ¦ pytest t§ --slow ‡ ¦ pytest "$@" ‡ ¦ ! pytest t§ ‡ ¦ pytest t§ ‡ | tee -a log.txt
(pytest t§ ‡) ¦ pytest t§ "@ ${!v-}" ‡ ¦ bash -c 'pytest "t§ @ ${RET-none}" ‡' ¦ pytest t§ "@ $?" ‡
pytest t§ ‡ >> log.txt
== program
4× pytest ¦ 2× python3 -m pytest ¦ python3 ¦ ctest -R ¦ timeout 50 ctest
== label
3× "l§" ¦ "l§ $i" ¦ "$NAME §" ¦ "§ after $RET" ¦ "${1-} §" ¦ "§ $?" ¦ "${FAILED[*]-} §" ¦ "$RANDOM §" ¦ "$(echo §)"
"§ in ${PWD##*/}" ¦ "§ ${FUNCNAME[0]-}" ¦ "$v is ${!v-}"
== read
[ $RET -ne 0 ] && echo "@ some" ¦ [ $RET -eq 0 ] || exit 4 ¦ declare -n ref=RET; echo "@ $ref"; unset -n ref
echo "@ v ${!v-none}" ¦ if [[ -v $v ]]; then echo "@ set ${!v}"; fi ¦ if ((v)); then echo "@ v"; else echo "@ not v"; fi
echo "@ $((v)) $((RET + N))" ¦ if test -v "$v"; then echo "@ is set"; fi ¦ eval "echo \"@ \$RET\"" ¦ eval echo @ \$$v
seen_§() { echo "@ RET is $RET"; }; seen_§ ¦ case $RET in 0) echo "@ fine" ;; *) echo "@ bad" ;; esac
echo "@ status $?" ¦ for x in ${FAILED[@]+"${FAILED[@]}"}; do echo "@ again $x"; done
echo "@ ${#FAILED[@]} ${FAILED[*]-}" ¦ x=$?; echo "@ $x" ¦ if [ "$RET" -gt 1 ]; then echo "@ too many"; exit 9; fi
: ${F:=0}; echo "@ F $F" ¦ echo "@ ${PWD##*/} $NAME ${OK-}" ¦ echo "@ $(echo $RET $FAILS)" ¦ (echo "@ sub $RET ${F-}")
[ -z "${F-}" ] || echo "@ F" ¦ echo "@ $FAILS $N ${failed-}" ¦ printenv RET | sed 's/^/@ /'
declare -p RET | sed 's/^/@ /' ¦ type -t later | sed 's/^/@ /' ¦ cat seen.txt 2>/dev/null || :
while [ "$RET" -gt 0 ]; do echo "@ down $RET"; RET=0; last=1; done ¦ b=$RET; echo "@ b $b"; [ "$b" -eq 0 ] || B=1
[ -e failed.mark ] && echo "@ mark" ¦ (( RET )) && echo "@ now" || echo "@ not now" ¦ RET=$((RET)) ¦ RET=$((RET * 2))
echo "@ ${RET@Q}" ¦ echo "@ ${RET/1/one}" ¦ [[ $RET == 0 && ! -v F ]] && echo "@ green"
test "$RET" = 0 -a "$N" = 0 && g=1 ¦ set | grep -c '^RET=0' | sed 's/^/@ /' ¦ export RET; bash -c 'echo "@ child $RET"'
let "RET > 0" && echo "@ let" ¦ N=$RET ¦ local_§() { local RET=5; echo "@ $RET"; }; local_§; echo "@ $RET"
echo "@ ${PIPESTATUS[*]}" ¦ later 2>/dev/null || true ¦ arr=([RET]=x); echo "@ ${!arr[@]}" ¦ echo "@ ${x:RET:1} $RANDOM"
u_§=${F-$RET}; echo "@ $u_§"
== form
f_§() { «test»⏎}⏎if f_§; then echo "@ f passed"; else echo "@ f failed"; fi
f_§() { «test»⏎}; f_§ || echo "@ f said $?" ¦ f_§() { «test»⏎}; f_§ "a b" && echo "@ f fine"
f_§() { «test»⏎}; while ! f_§; do echo "@ not"; break; done ¦ f_§() { local what=$1 NAME=in_f; «test»⏎}⏎f_§ a⏎f_§ "b c"
f_§() { "$@"; }; f_§ pytest by_f§ ‡ || test_fail "by f" ¦ f_§() { «inner»; }; f_§ pytest i§ ‡ || test_fail "i§"
run_test() { «inner»; }; run_test pytest g§ ‡; run_test pytest h§ ‡
set -eu⏎run_test() { «inner»; }⏎run_test pytest j§⏎run_test pytest k§ ‡
f_§() { "$@" || test_fail "$2"; }⏎f_§ pytest a§ ‡⏎f_§ pytest b§ ‡
f_§() { g_§() { «test»⏎}; g_§ in; «test»⏎}; f_§ x; f_§ y ¦ ( «test»⏎) ¦ ( «test»⏎exit $RET ) || test_fail "sub §"
out=$(«test»⏎); echo "$out" ¦ { «test»⏎} 2>&1 | cat ¦ ! { «test»⏎} ¦ { «test»⏎«test»⏎} >> log.txt
f_§() (⏎  «test»⏎  exit $RET⏎); f_§ || RET=$? ¦ eval '«plain»' ¦ x=a§; . ./more.sh; x=b§; . ./more.sh
. ./more.sh || echo "@ more said $?" ¦ f_§() { . ./more.sh; return $RET; }; f_§ || RET=3
f_§() { «test»⏎return 0; }; f_§ && f_§ ¦ f_§() { local RET=0; «plain»; echo "@ local $RET"; }; f_§
f_§() { «plain»; }; f_§ q
f_§() { [ $1 -gt 0 ] || return 0; pytest d$1 --exit=$(($1 % 2)) || test_fail "d$1"; f_§ $(($1 - 1)); }; f_§ 3
if [ $RET -eq 0 ]; then «test»⏎else echo "@ skipped"; fi ¦ [ $RET -ne 0 ] || { «test»⏎}
if «plain»; then echo "@ good"; fi ¦ set -- "$@" p§; pytest $# ‡ || test_fail "$*"
a_§() { «plain»; }; a_§; echo "@ a $?"
== inner
3× "$@" ¦ shift 0; "$@" ¦ local rc=0; "$@" || rc=$?; return $rc ¦ [[ $2 =~ (.) ]]; "$@" ¦ set +x; "$@" ¦ "$@"; : $NOPE
echo "@ $2"; "$@" ¦ local rc; set +e; eval "$@"; rc=$?; set -e; return $rc ¦ for w in "$@"; do :; done; "$@" ¦ eval "$*"
== plain
2× pytest p§ ‡ || test_fail "p§ $i" ¦ pytest p§ ‡ || test_fail "${1-} §"
== loop
for i in 1 2 3; do pytest l§ $i --exit=$((i % 2)) || test_fail "l $i"; done ¦ for i in 1 2; do «test»⏎«read»⏎done
for i in 1 2 3; do pytest l§ ‡ --exit=$((i == 2)) || test_fail "l"; done ¦ for i in a "b c"; do «plain»; done
for i in 1 2; do «run» || { echo "@ no $i"; RET=1; }; done ¦ while read -r i x; do «test»⏎done < names.txt
while read -r NAME; do pytest "$NAME" ‡ || test_fail "$NAME §"; done <<< $'one\ntwo' ¦ for i in 1 2 3; do «test»⏎done
for i in 1 2 3; do pytest m§ --exit=$((3 - i)) && break || test_fail "try $i"; done
i=0; while ((i++ < 2)); do «plain»; done ¦ cat names.txt | while read -r i x; do «plain»; done
for x in 1 2; do for i in x y; do «plain»; [ $RET -eq 0 ] || break; done; done
== other
«run» || RET=1 ¦ «run» || rc=$?; echo "@ rc ${rc-}" ¦ «run» || exit 1 ¦ «run» || { echo "@ ends"; exit 2; }
«run» || FAILS=1 ¦ «run»; rc=$?; [ $rc -eq 0 ] || RET=$rc ¦ «run»; if [ $? -ne 0 ]; then echo "@ failed §"; RET=1; fi
«run» || RET=$((RET|$?)) ¦ check_result() { [ $1 -eq 0 ] || { echo "@ check $1"; RET=1; }; }⏎«run»; check_result $?
«run» || ((RET+=1)) ¦ if «run»; then echo "@ yes §"; else echo "@ no §"; RET=1; fi
if ! «run»; then echo "@ not §"; FAILS=$((FAILS+1)); fi ¦ «run» && echo "@ ok §" ¦ «run» && echo "@ ok §" || RET=$?
«run» ¦ pytest o§ ‡ | cat; rc=("${PIPESTATUS[@]}"); RET=${rc[0]}
pytest o§ ‡ | tee o§.log; rc=${PIPESTATUS[0]}; [ $rc -eq 0 ] || RET=$rc
pytest o§ ‡ 2>&1 | tee -a log.txt⏎if [ ${PIPESTATUS[0]} -ne 0 ]; then echo "@ piped §"; RET=1; fi
if pytest o§ ‡ | tail -1; then echo "@ tail §"; else RET=1; fi
run_test() { "$@"; rc=$?; [ $rc -eq 0 ] || { echo "@ $* $rc"; RET=$rc; }; }; run_test pytest r§ ‡; run_test pytest s§ ‡
run_cmd() { eval "$*" || { echo "@ cmd $*"; RET=1; }; }; run_cmd "pytest e§ ‡" ¦ «run» || FAILED+=(§) ¦ «run» || F=$?
trap 'echo "@ trap $?"; RET=1' ERR; pytest e§ ‡; trap - ERR ¦ set +e; pytest e§ ‡; RET=$?; set -e
x=$(pytest s§ ‡) || RET=6 ¦ pytest bg§ ‡ --quiet & wait $! || test_fail "bg §"
pytest o§ ‡ || (echo "@ in sub"; exit 1) || test_fail "o§"
note_fail() { echo "@ noted $1"; RET=1; }⏎pytest n§ ‡ || note_fail "n§"⏎pytest m§ ‡ || note_fail "m§"
note_fail() { echo "@ $1" >> seen.txt; ((N++)); return 0; }⏎for i in 1 2; do pytest n$i ‡ || note_fail "n$i"; done
== switch
set -e ¦ set +e ¦ set -u ¦ set +u ¦ set -o pipefail ¦ trap 'echo "@ ERR $?"' ERR ¦ trap - ERR ¦ RET=0 ¦ FAILED=()
FUNCNEST=0 ¦ trap 'echo "@ bye $? $RET"' EXIT ¦ trap 'exit $RET' EXIT ¦ trap - EXIT ¦ set +T ¦ cd sub ¦ RANDOM=7 ¦ v=RET
v=FAILS ¦ true ¦ exec 201>«file» ¦ export RET ¦ export -n RET ¦ readonly K§=1 ¦ set -f ¦ IFS=, ¦ shopt -s expand_aliases
set -o posix
== end
if ((v)); then exit 4; fi ¦ 3× exit $((v)) ¦ codes=(0 7 8 9); exit ${codes[v]} ¦ x=0123; exit ${x:v:1}
b=$((v > 0)); exit $b ¦ 3× if [[ -v F ]]; then exit 4; fi ¦ F_v=F; if [[ -v $F_v ]]; then exit 4; fi; exit $N
if test -v F; then exit 3; fi; exit $RET ¦ 6× [ $N -eq 0 ] || exit 4; exit $FAILS
case $RET$FAILS$N in 000) exit 0 ;; esac; exit 4 ¦ [ "${PWD##*/}" = work ] || exit 5 ¦ declare -n ref=$v; exit $ref
(exit $RET) ¦ eval "exit \$$v" ¦ done_§() { return $RET; }; done_§ ¦ while ((v)); do exit 6; done ¦ 4× exit $RET
[ $RET -eq 0 ] ¦ 5× exit $((RET + FAILS + N + ${F:+1}0)) ¦ [ -z "${FAILED[*]-}" ] || exit 1; exit $RET ¦ exit ¦ 3× ε
((!v)) ¦ if [ "$RET" -ne 0 ]; then echo "@ failed: ${FAILED[*]-}"; exit 1; fi⏎echo "@ All passed"
[ -s seen.txt ] && exit 1; exit $RET ¦ exit ${!v:-0} ¦ [[ ! -v F ]] ¦ ((RET == 0 && FAILS == 0))
if ((FAILS || RET)); then exit 3; fi ¦ bash -c "exit $RET" ¦ 4× «test» ¦ 2× «test»⏎exit
3× «test»⏎rc=$?⏎«test»⏎exit $rc ¦ 3× l_§() { «test»⏎}⏎l_§ || exit 7 ¦ exec pytest last ‡
[ "${OK-}" != no ] && exit $RET ¦ test "$RET$FAILS$N" = 000 ¦ [ ! -s seen.txt ]
"""


class Script(NamedTuple):
    """A script's number, and test.sh with what lies beside it."""

    number: int
    files: Mapping[str, str]


class Trace(NamedTuple):
    """What a run of a script returned, printed and left."""

    code: int
    out: bytes
    tree: Mapping[str, bytes]

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "surrogateescape")


class Certainties:
    """Makes scripts. A rule is a deck of its forms, which is shuffled anew when it is used up: none is left out."""

    def __init__(self, seed: int) -> None:
        self.dice, self.number, self.rules = random.Random(seed), 0, self.parse()
        self.decks: Dict[str, List[str]] = {rule: [] for rule in self.rules}

    @staticmethod
    def parse() -> Dict[str, List[str]]:
        """The grammar's rules and their forms, each as often as it weighs."""
        rules: Dict[str, List[str]] = {}
        for piece in re.split("\n| ¦ ", GRAMMAR.strip("\n")):
            weight, form = re.fullmatch(r"(?:(\d+)× )?(.*)", piece).groups()        # type: ignore[union-attr]
            if form.startswith("== "):
                forms = rules[form[3:]] = []
            else:
                forms += [form.replace("⏎", "\n").replace("ε", "")] * int(weight or 1)
        return rules

    def grow(self, rule: str) -> str:
        """Some form of a rule, in which nothing is left to be filled in but ‡."""
        if not self.decks[rule]:
            self.decks[rule] = self.dice.sample(self.rules[rule], len(self.rules[rule]))
        form = self.decks[rule].pop()
        if "§" in form:
            self.number += 1
        form = form.replace("§", str(self.number))
        return re.sub("«(\\w+)»", lambda match: self.grow(match.group(1)), form)

    def make(self, number: int) -> Script:
        """The next script: half of its tests fail, or one, wherever that is, or all or none."""
        self.number = 0
        note = 'RANDOM=42\nnote_fail() { echo "@ note $1 $RET"; RET=$((RET + 1)); }\n'
        texts = {"test.sh": self.grow("script").replace("\n", "\n" + note, 1) + "\n",
                 "more.sh": f'pytest "$x" ‡ || test_fail "of $x"\n{self.grow("test")}\n',
                 "handler.sh": f"test_fail() {{ {self.grow('effect')}; }}\n", "names.txt": "one 1\ntwo 2\n"}
        places = texts["test.sh"].count("‡")
        half = {at for at in range(places) if self.dice.random() < 0.5}
        one = {self.dice.randrange(max(places, 1))}
        fails = self.dice.choice([half] * 5 + [one] * 5 + [set(), set(range(places))])
        files = {name: self.told(text, fails if name == "test.sh" else {0} if fails & {1} else set())
                 for name, text in texts.items()}
        return Script(number, files)

    def told(self, text: str, fails: AbstractSet[int]) -> str:
        """The text with the tests at these places told to fail."""
        pieces = text.split("‡")
        ends = [f"--exit={self.dice.choice([1, 1, 2, 5])}" if at in fails else "" for at in range(len(pieces) - 1)]
        return "".join(piece + end for piece, end in zip(pieces, [*ends, ""]))


def reactions(ran: Trace) -> Sequence[bytes]:
    """What a run said about failures, then what it left in files."""
    printed = REACTION.findall(BLOCK.sub(b"", ran.out))
    return printed + [b"%s: %s" % (name.encode(), line) for name in sorted(ran.tree)
                      if name.endswith("seen.txt") for line in REACTION.findall(ran.tree[name])]


class ScriptCertainty(EquivalenceCase):
    """Each script runs under bash and under the runner; a difference names its number."""

    def run_script(self, script: Script, slots: Optional[int]) -> Trace:
        """Run a script in a fresh folder, under bash or the runner."""
        root = tempfile.mkdtemp(dir=self.folder)
        work = os.path.join(root, "work")
        for name in ("work/sub", "tmp", "bin"):
            os.makedirs(os.path.join(root, name))
        files = {**{f"work/{name}": text for name, text in script.files.items()},
                 **{f"bin/{name}": STUB for name in PROGRAMS}}
        for name, text in files.items():
            with self.lock, open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(file.name, 0o755)
        command = ["bash"]
        if slots is not None:            # without `site`, which takes as long as bash and its script
            command = [sys.executable, "-S", compiled_runner(), "--fail-function=note_fail", f"--log-dir={root}/logs"]
        environment = {
            "PATH": f"{root}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": root, "TMPDIR": f"{root}/tmp",
            "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(slots or 1)))}
        with self.lock:
            process = subprocess.Popen(
                [*command, "test.sh"], cwd=work, start_new_session=True, stdin=subprocess.DEVNULL, env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            out, _ = process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out = process.communicate()[0] + b"\nIT HANGS\n"
        text = REMARK.sub(b"", out.replace(os.fsencode(root), b"/ROOT"))
        ran = Trace(shell_status(process.returncode), text, tree_of(work))
        shutil.rmtree(root, ignore_errors=True)
        return ran

    def faults_of(self, plain: Trace, ran: Trace, slots: int) -> Iterator[str]:
        """How a run breaks the promise."""
        ahead = slots > 1 and AHEAD in ran.out
        if ran.code == 0 and (plain.code != 0 or ahead):
            yield f"GREEN BY MISTAKE: exit status 0 instead of {plain.code}" + ", having gone ahead" * ahead
        if ran.code != plain.code and not ahead:
            yield f"exit status {ran.code} instead of {plain.code}"
        if slots == 1 and ran.out.rstrip(b"\n") != plain.out.rstrip(b"\n"):
            yield "output:\n" + diff(plain.out, ran.out)
        if slots == 1 and ran.tree != plain.tree:
            yield f"files: {ran.tree} instead of {plain.tree}"
        if slots > 1 and not ahead:
            wanted, got = (b"\n".join([*reactions(trace), b""]) for trace in (plain, ran))
            if wanted != got:
                yield "reactions:\n" + diff(wanted, got)

    def check(self, script: Script, on_slots: Sequence[int]) -> Tuple[List[str], bool, int]:
        """The faults of a script, whether the runner went ahead in it, and how many tests it had on slots at once."""
        number, files = script
        plain = self.run_script(script, None)
        faults, ahead, started = [], False, 0
        for slots in on_slots:
            ran = self.run_script(script, slots)
            ahead = ahead or AHEAD in ran.out
            started += len(re.findall(rb"^>>> Starting: ", ran.out, re.MULTILINE))
            found = list(self.faults_of(plain, ran, slots))
            if found:
                faults.append(f"CERTAIN_SCRIPT={number} on {slots} slot(s)\n" + "\n".join(found)[:4000])
            if ONE_SCRIPT:
                print(f"---- {slots} slot(s), exit {ran.code}\n{ran.text}")
        text = "\n".join(f"---- {name}\n{files[name]}" for name in sorted(files) if name.endswith(".sh"))
        if ONE_SCRIPT:
            print(f"{text}\n---- plain, exit {plain.code}\n{plain.text}")
        if faults and self.run_script(script, None)[1:] != plain[1:]:
            faults = []                                          # not even bash does the same twice
        return [*faults, text] if faults else [], ahead, started

    def test_no_failure_is_lost(self) -> None:
        """Neither green by mistake nor blamed for another; hardly ever has the runner gone too far."""
        maker = Certainties(SEED)
        scripts = [maker.make(number) for number in range(1, int(ONE_SCRIPT or SCRIPTS) + 1)]
        faults: List[List[str]] = []
        ahead, started = [], 0
        with ThreadPoolExecutor(WORKERS) as pool:
            checks = [pool.submit(self.check, script, (1, 2, 4) if ONE_SCRIPT else (SLOTS[number % 4],))
                      for number, script in enumerate(scripts[-1:] if ONE_SCRIPT else scripts)]
            for script, check in zip(scripts[-len(checks):], checks):
                if len(faults) >= ENOUGH and check.cancel():
                    continue
                found, went_ahead, tests = check.result()
                faults, started = [*faults, *[found] * bool(found)], started + tests
                ahead += [script.number] * went_ahead
        if faults:
            self.fail(f"\nat least {len(faults)} scripts differ\n" + "\n\n".join(sum(faults, [])))
        if not ONE_SCRIPT:
            expected = len(checks) / ONE_IN     # by chance, few scripts show up to two standard deviations more
            self.assertLessEqual(len(ahead), max(2, expected + 2 * expected ** 0.5), f"it went ahead in {ahead}")
            self.assertGreater(started, len(checks) / 5)     # else there is not much in what has been compared


# Scripts in which some version of the runner went wrong; «H» is a plain handler, «T» a test that fails.
FIXED = r"""
on_exit() { echo "@ $# $?"; }⏎trap on_exit EXIT⏎pytest a --exit=3
bye_exit() { exit ${1:-4}; }⏎trap bye_exit EXIT⏎pytest a
add() { local o=$(trap -p EXIT | sed "s/^trap -- '\(.*\)' EXIT$/\1/"); trap "${o:+$o; }$1" EXIT; }⏎add 'echo "@ bye"'⏎
pytest a --exit=1 || F=1⏎add '[ -z "$F" ] || exit 1'⏎pytest b
«F»pytest a --late --exit=1 && tests/one.sh⏎echo '[ -e made ]' >tests/look.sh⏎bash tests/look.sh || exit 6
«F»if pytest a --late --exit=1; then tests/one.sh; else test -e made; fi
«F»pytest a --late --exit=1 || exec bash -c '[ -e made ]'⏎tests/one.sh
«F»if pytest a --late | grep -q no; then tests/one.sh; else test -e made; exit $?; fi
«F»set -e -o pipefail⏎trap '[ -e made ] && exit 0' EXIT⏎pytest a --late | grep no⏎tests/one.sh
«F»pytest a --late --exit=1 || { x=$(realpath -e made) || exit 6; }⏎tests/one.sh
«F»pytest a --late --exit=1 || { for x in $(<made); do Y=1; done; [ $Y ] || exit 6; }⏎tests/one.sh
«F»pytest a⏎tests/err.sh 2>&1 >/dev/null | grep -q no && exit 4⏎exit 0
«F»f() { tests/err.sh; } >/dev/null⏎pytest a⏎f 2>&1 | grep -q no && exit 4⏎exit 0
«F»echo 'sleep 0.3; echo >made' >tests/fix.sh; echo '[ ! -e made ]' >tests/look.sh; chmod +x tests/*; : >test_f.py⏎
pytest test_f.py --slow --exit=1 || tests/fix.sh⏎tests/look.sh test_f.py || exit 6
«F»exec 2>err.log⏎pytest a⏎tests/err.sh⏎[ -s err.log ] && exit 4⏎exit 0
«H»declare -n r=RET⏎«T»⏎exit $r ¦ «H»v=RET⏎«T»⏎exit ${!v} ¦ «H»v=RET⏎«T»⏎if ((v)); then exit 4; fi
«H»v=RET x=01⏎«T»⏎y=${x:v:1}⏎exit $y ¦ v=F; test_fail() { : ${F:=1}; }⏎«T»⏎[[ -v $v ]] && exit 4⏎exit 0
N=0; test_fail() { : $((++N)); }⏎«T»⏎[ $N -eq 0 ] || exit 4⏎exit 0 ¦ «H»RES=0⏎«T»⏎RES=$RET; RET=0⏎exit $((RES+RET))
RET=0; test_fail() { local n=$RET; RET=$((n+1)); }⏎«T»⏎pytest b⏎exit $RET
failed=0; test_fail() { local msg="failed: $1"; failed=1; }⏎«T»⏎[ $failed = 0 ] || exit 5⏎exit 0
RET=0; test_fail() { local -n r=RET; r=1; }⏎«T»⏎[ $RET -eq 0 ] || exit 4⏎exit 0
RET=0 v=RET; test_fail() { printf -v "$v" 1; }⏎«T»⏎[ $RET -eq 0 ] || exit 4⏎exit 0
export RET=0; test_fail() { RET=1; }⏎«T»⏎bash -c 'exit $RET' || test_fail b⏎exit $RET
test_fail() { ((F++)); }⏎«T»
f() { [ "$1" ] || return 0; "$@"; }⏎run() { "$@" | cat; }⏎run f ""⏎f pytest b --exit=1⏎RET=$?⏎f pytest c⏎exit $RET
bg() { "$@" & wait; }⏎try() { "$@" || "$@"; }⏎bg try true⏎try pytest b --exit=1⏎RET=$?⏎try pytest c⏎exit $RET
test_fail() { ((F++)); }⏎main() { «T»; }⏎main || exit 5
test_fail() { ((F++)); }⏎«T»⏎exit
test_fail() { [ "$CI" ] && echo ci; }⏎f() { «T»; }⏎if f; then echo "@ fine"; else exit 3; fi
test_fail() { [ "$CI" ] && echo ci; }⏎«T»⏎rc=$?⏎pytest b || test_fail b⏎exit $rc
test_fail() { ((F++)); }⏎trap 'exit 9' ERR⏎«T»⏎exit 0 ¦ test_fail() { false; }⏎set -e⏎«T»⏎exit 0
test_fail() { echo "@ $1 $i"; RET=$i; }⏎for i in 1 2 3; do pytest a --exit=$((i==1)) || test_fail a; done⏎exit $RET
test_fail() { echo "@ $NAME"; RET=1; }⏎NAME=a⏎«T»⏎NAME=b⏎pytest b⏎exit $RET
test_fail() { echo "@ ${PWD##*/}"; }⏎cd sub⏎«T»⏎cd ..⏎pytest b || test_fail b
test_fail() { cd sub; }⏎«T»⏎echo "@ ${PWD##*/}"
test_fail() { last() { exit 4; }; }⏎last() { exit 0; }⏎«T»⏎last ¦ test_fail() { trap "exit 5" EXIT; }⏎«T»⏎:
for i in 1 2 3; do pytest a --exit=$((i==1)) || { echo "@ no $i"; RET=$i; }; done⏎exit $RET
test_fail() { echo "@ $1"; RET=$2; }⏎pytest t --exit=1 || test_fail a 0; pytest t --exit=1 || test_fail b 4⏎exit $RET
«H»echo '«T»$x' >x.sh; x=1; . ./x.sh⏎echo '«T»b$x' >x.sh; x=2; . ./x.sh⏎exit $RET
RANDOM=42; test_fail() { echo "@ $1"; }⏎pytest a --exit=1 || test_fail $RANDOM⏎echo "@ $RANDOM"
«H»set +T⏎f() { «T»; }⏎f; f⏎exit $RET ¦ FUNCNEST=3⏎«H»f() { «T»; }⏎f⏎exit $RET ¦ «H»shopt -u extdebug⏎«T»⏎exit $RET
«H»exec 200>x 201>y 151>z⏎flock 200⏎«T»⏎exit $RET
«H»set -u; A=(x y); B=([3]=q)⏎pytest "${A[@]}" "${B[3]}"⏎«T»⏎exit $RET
«H»trap 'exit $RET' EXIT⏎«T»⏎exit 0 ¦ «H»f() { local RET=0; «T»; return $RET; }⏎f⏎exit $?
f() { local bad=; pytest a --exit=1 || bad=1; [ -z "$bad" ]; }⏎f || exit 7
pytest a || RET=1⏎pytest b --exit=3 || RET=$?⏎exit $RET
set -e; trap 'echo "@ bye $? $S"' EXIT⏎S=1⏎pytest a⏎S=2⏎pytest b --exit=3⏎S=3⏎echo "@ never"⏎pytest c⏎S=4
set -e⏎f() { pytest $1; pytest b; }⏎f a⏎f --exit=2⏎echo "@ never"
pytest a || exit 1⏎pytest b --exit=2 || exit 4⏎echo "@ never"
set -e⏎f() { pytest $1; pytest b; }⏎f --exit=3 || echo "@ f failed"⏎if f --exit=2; then echo "@ good"; fi⏎echo "@ end"
check() { [ $? -eq 0 ] || { echo "@ $1"; RET=1; }; }⏎pytest a --exit=1⏎check a⏎pytest b⏎check b⏎exit $RET
pytest a⏎while [ $? -eq 0 ]; do n=$((n+1)); pytest b --exit=$((n/2)); done⏎echo "@ end $n"
trap 'echo "@ err $?"; RET=1' ERR⏎set +e⏎pytest a --exit=1⏎pytest b⏎pytest c --exit=2⏎exit $RET
run() { "$@"; local rc=$?; [ $rc -eq 0 ] || { echo "@ $*"; RET=1; }; }⏎run pytest a --exit=1⏎run pytest b⏎exit $RET
set -e⏎run_test() { pytest $1; echo "@ ok"; }⏎run_test a⏎run_test --exit=2⏎echo "@ never"
set -u⏎«H»run_test() { pytest $1 $NOPE; }⏎run_test a || test_fail a⏎echo "@ never"
set -e⏎eval "{ pytest a; } || :"⏎exit 3
EXITCODE=0; trap "EXITCODE=1" ERR⏎set +e⏎echo "@ 1"⏎pytest a⏎pytest b --exit=3⏎echo "@ 2"⏎pytest c⏎exit $EXITCODE
EXITCODE=0; trap "EXITCODE=1" ERR⏎pytest a⏎[ a = b ]⏎pytest b⏎exit $EXITCODE
set -e⏎{ pytest a --exit=1; pytest b; } || echo "@ failed"⏎f() { pytest c --exit=1; }⏎eval "f || :"⏎echo "@ end"
RET=0⏎echo 'test_x() { RET=1; }' >l.sh⏎. ./l.sh⏎test_x⏎exit $RET ¦ «H»pytest a --exit=1 || test_fail a || true⏎exit $RET
«H»echo 'f() { RET=1; }' >l.sh⏎. ./l.sh⏎f || test_fail a⏎exit $RET
RET=0⏎f() { RET=1; }⏎n=f⏎"$n" || test_fail a⏎exit $RET
set -e⏎for i in 0 0 4 0; do echo "@ $i"; pytest a --exit=$i; done⏎echo "@ never"
for i in 1 2 3; do pytest a --exit=$((i==2)) || break; echo "@ $i"; done⏎exit $i
f() { pytest a --exit=3 || return; echo "@ never"; }⏎f⏎exit $?
test_fail() { echo "@ $1"; }⏎f() { pytest ${NOPE:?x}; }⏎f || test_fail a⏎exit 0
test_fail() { echo "@ $1"; }⏎f() { "$@"; }⏎f readonly A=1 || test_fail a⏎A=2⏎exit $A
RET=0⏎run_test() { "$@"; }⏎run_test pytest a⏎run_test eval RET=5⏎exit $RET
set -e⏎run_test() { "$@"; }⏎run_test pytest a⏎run_test eval "exit 0"⏎exit 3
set -e⏎run_test() { set +e; eval "$@"; }⏎run_test pytest a⏎run_test pytest b --exit=3⏎exit 0
set -e⏎run_test() { local rc; set +e; eval "$@"; rc=$?; set -e; return $rc; }⏎run_test pytest⏎run_test pytest --exit=3
set -eu⏎trap 'echo "@ bye $?"' EXIT⏎run_test() { pytest $1; : $NOPE; pytest $1; }⏎run_test a⏎run_test b⏎echo "@ never"
set -eu⏎run_test() { [[ $1 =~ a(.) ]]; shift; "$@"; }⏎run_test ab pytest⏎run_test ac pytest --exit=4⏎echo "@ never"
trap 'echo "@ bye $? $x"' EXIT⏎x=1; pytest a⏎x=2; pytest b --exit=3 ¦ pytest a⏎f() { pytest b --exit=4; exit 5; }⏎f
trap 'echo "@ bye $? $x"' EXIT⏎x=1; f() { local x=2; pytest a; pytest b --exit=3; }⏎f
RET=0; run() { local -r optional=$2; ls; pytest $1 --exit=$3 || { [ $optional = yes ] || RET=1; }; }⏎
run a no 1⏎run b yes 0⏎exit $RET
RET=0; run() { local -r n=$1; date; pytest $n --exit=$2; local -r rc=$?; if [ $rc -ne $3 ]; then RET=1; fi; }⏎
run a 0 0⏎run b 5 0⏎run c 5 5⏎exit $RET
test_fail() { [ $C = 2 ] || RET=1; }⏎C=1⏎«T»⏎C=2⏎readonly C⏎pytest b⏎exit $RET
RET=0; bad() { [ "$CUDA_VISIBLE_DEVICES" = 0,1 ] || RET=1; }⏎export CUDA_VISIBLE_DEVICES=0⏎
pytest a --exit=1 || bad⏎export CUDA_VISIBLE_DEVICES=0,1⏎pytest b || bad⏎exit $RET
set -e⏎trap 'echo "@ $? $BASH_COMMAND $LINENO $*"' EXIT⏎pytest a⏎pytest b --exit=3⏎
echo "@ never" ¦ trap 'nosuch; echo "@ $LINENO"' EXIT⏎pytest a
«H»pytest a "c" --exit=1 || test_fail a; pytest a $'c' --exit=1 || test_fail b⏎exit $RET
RET=0; { pytest a --exit=1 && echo ok; } || RET=1⏎exit $RET ¦ RET=0; if :; then pytest a --exit=1 && :; fi || RET=1⏎
exit $RET
for i in 1; do pytest a --exit=1; rc=$?; [ $rc -eq 0 ]; done || RET=1⏎exit $RET ¦ RET=0⏎{ «T»; false; } || exit 3
RET=0; pytest a --exit=1 | tee x; RET=$((RET | PIPESTATUS[0]))⏎exit $RET
RET=0; if pytest a --exit=1 | tee x; then [ ${PIPESTATUS[0]} -eq 0 ] || RET=1; fi⏎exit $RET
set -o pipefail; fail() { [ "${PIPESTATUS[*]}" = "1 0" ] && RET=1; :; }⏎pytest a --exit=1 | tee x || fail⏎pytest b⏎
exit $RET
set -e; note() { echo "$1" >> reports/x; F=1; }⏎pytest b || note b⏎pytest a --exit=1 || note a⏎echo "@ never"
set -e; note() { printf '%d\n' abc; F=1; }⏎pytest a --exit=1 || note a ¦ set -e; note() { F=`false`; G=1; }⏎
pytest a --exit=1 || note a
touch x.$$; test_x() { [ ! -e x.$$ ]; }⏎test_x || RET=1⏎pytest b⏎exit ${RET:-0}
set -e; test_x() { [[ $- != *e* ]]; }⏎test_x || RET=1⏎pytest b⏎exit ${RET:-0}
A=(--exit=1 1 2) k=-1 RET=0; pytest "${A[k=k+1]}" || RET=1⏎pytest "${A[k=k+1]}" || RET=1⏎exit $RET
L=a,b; pytest a --exit=1 || { IFS=,; echo "@ failed"; }⏎n=0; for t in $L; do n=$((n+1)); done⏎exit $((n-1))
RANDOM=42; test_fail() { id=$RANDOM; }⏎«T»⏎echo "@ $RANDOM"; pytest b || test_fail b⏎[ "$id" -eq 17772 ] && exit 1⏎
exit 0
pytest a --exit=1 || touch x.err⏎for p in '*.err' '*.x'; do for f in $p; do [ "$f" = "$p" ] || RET=1; done; done⏎
exit ${RET:-0}
test_fail() { S=1; }⏎go_a() { pytest a --exit=1; }; go_b() { [ ! "$S" ] || exit 5; pytest b; }⏎
for t in a b; do go_$t || test_fail $t; done
F=0; f() { local F=0; pytest a --exit=1 || F=$((F+1)); [ "$V" ] && echo "$F"; }⏎f⏎[ $F -eq 1 ]
F=0; f() { pytest a --exit=1 || F=1; }; g() { builtin local "F=0"; f; echo ran; }⏎g⏎[ $F -eq 1 ]
F=0; f() { pytest a --exit=1 || F=1; }; g() { v=F; local "$v=0"; f; echo ran; }⏎g⏎[ $F -eq 1 ]
F=0; l=local; f() { pytest a --exit=1 || F=1; }; g() { $l F=0; f; echo ran; }⏎g⏎[ $F -eq 1 ]
D= n=0; note() { local D=y; }⏎until [ "$D" ]; do ((++n)); pytest a --exit=$((n/3)) || { D=1; note; }; done⏎exit $D
pytest a⏎run_test() { pytest b --exit=2; pytest c; }⏎run_test ¦ set -u⏎pytest a⏎run_test() { : $NOPE; }⏎run_test
trap 'exit 9' ERR⏎pytest a⏎pytest b --exit=2 ¦ if :; then⏎pytest a⏎pytest b --exit=2⏎fi ¦ pytest a --exit=1⏎pytest b
x=R; x+=ET; RET=0; test_fail() { printf -v "$x" 1; }⏎f() { code=$1; }⏎«T»⏎f "$RET"⏎exit $code
set -u; A=()⏎«H»pytest "${A[@]}" ${P:+:$P} --exit=1 || test_fail a⏎pytest ${RET:+$NOPE} || test_fail b⏎exit 0
trap 'echo "@ $? $LINENO $BASH_COMMAND"; RET=1' ERR⏎set +e⏎pytest a --exit=2⏎pytest b⏎[ a = b ]⏎pytest c --exit=4⏎
exit $RET
set -e⏎n=0⏎on() { n=$((n+1)); echo "@ in $1 $n"; }⏎trap 'on $LINENO' ERR⏎pytest a⏎pytest b --exit=5⏎echo "@ never"⏎
pytest c
on() { r=$?; if [[ $r == 5 ]]; then echo "@ five"; else echo "@ $r"; exit 1; fi; }⏎trap on ERR⏎
trap 'echo "@ end $?"' EXIT⏎for i in 5 0 5 2; do pytest a --exit=$i; done⏎pytest b
f() { false; pytest x --exit=3; echo "@ in f"; }⏎trap 'echo "@ $? $LINENO"' ERR⏎pytest a --exit=1⏎f⏎pytest b --exit=1⏎
set -E⏎f⏎pytest c --exit=2⏎trap - ERR⏎pytest d --exit=2⏎pytest e
set -ex⏎trap 'echo "@ bye $?" >&2' EXIT⏎pytest a⏎pytest b --exit=3⏎pytest c ¦ trap 'RET=$?' ERR⏎RET=0⏎
pytest a --exit=2⏎pytest b⏎exit $RET
RET=0 P=0⏎pytest a --exit=1; ra=$?; pytest b; rb=$?⏎pytest c --exit=3⏎rc=$?⏎if [ $rc -ne 0 ]; then⏎
echo "@ c $rc"; RET=$rc⏎fi⏎
if pytest d; then echo "@ d"; P=$((P+1)); else echo "@ no d $?"; RET=4; fi⏎
if ! pytest e --exit=6; then echo "@ e $?"; ((P+=9)); fi⏎
pytest g && echo "@ g"⏎pytest h --exit=7 && echo "@ h" || RET=$?⏎if pytest i --exit=2; then⏎P=9⏎else⏎echo "@ i $?"⏎fi⏎
check() { [ $1 -eq 0 ] && echo "@ ok" || echo "@ not ok $1"; }⏎pytest j --exit=2⏎check $?⏎pytest k⏎check $?⏎
echo "@ $ra $rb $rc $P"⏎exit $RET
set -x⏎N=()⏎for t in a b c; do⏎pytest $t --exit=$([ $t = b ] && echo 3)⏎rc=$?⏎
if [[ $rc -eq 0 ]]; then echo "@ $t"; else N+=("$t"); fi⏎done⏎exit ${#N[@]}
pytest a --exit=1; RET=$((RET*2+$?)); pytest b; RET=$((RET*2+$?)); pytest c --exit=1; RET=$((RET*2+$?)); exit $RET
x=1⏎pytest a --exit=1⏎x=$((x+$?))⏎x=5⏎pytest b⏎x=$((x+$?))⏎exit $x ¦ if pytest a --exit=1; then RET=2; fi⏎exit $RET
pytest a --exit=7; local rc=$?; if [ "${rc:-0}" = 0 ]; then BAD=1; fi⏎pytest b⏎exit $BAD
f() { local rc=7; pytest $1; rc=$?; if [ $rc -ne 0 ]; then echo "@ $rc"; fi; :; }⏎f --exit=2⏎f⏎rc=3⏎f --exit=4⏎exit $rc
f() { local rc; echo "@ <$rc>"; pytest $1; rc=$?; echo "@ $rc"; }⏎f --exit=2⏎f⏎exit $rc ¦ pytest a --exit=1⏎rc=$?⏎
exec true $rc
f() { if pytest $1; then :; else RET=1; fi; }⏎f --exit=2 || echo "@ f"⏎f⏎
exit $RET ¦ f() { pytest $1 && echo "@ ok"; }⏎set -e⏎f⏎f --exit=2⏎echo "@ never"
set -e⏎if pytest a --exit=1; then echo "@ y"; else echo "@ n"; fi⏎pytest b⏎rc=$?⏎pytest c --exit=4⏎rc=$?⏎echo "@ never"
trap 'echo "@ err $?"; RET=5' ERR⏎if pytest a --exit=1; then echo "@ y"; fi⏎pytest b --exit=2⏎rc=$?⏎
pytest c && pytest d --exit=3⏎exit $RET
pytest two --exit=1; a=$?; pytest two --exit=1; b=$((a+$?)); exit $b ¦ pytest a --exit=3 && x=1; pytest b; exit ${x-4}
trap 'exit $rc' EXIT⏎pytest a --exit=3⏎rc=$?⏎pytest b ¦ ( pytest a --exit=2; rc=$?; echo "@ $rc"; exit $rc ) || RET=6⏎
exit $RET
for i in 0 2 0; do if pytest a --exit=$i; then n=$((n+1)); continue; fi; echo "@ $i"; done⏎exit $n
for i in 0 3 0; do⏎pytest a --exit=$i⏎rc=$?⏎if [ $rc -ne 0 ]; then echo "@ stop $i"; exit $rc; fi⏎done⏎echo "@ never"
pytest a --exit=2⏎[ $? -eq 0 ] || { echo "@ a"; F=1; }⏎pytest b⏎if (( $? )); then F=2; fi⏎: "${F:=0}"⏎exit $F
pytest a --exit=1⏎RET=$(($RET + $?))⏎pytest b --exit=1⏎RET=$(($RET + $?))⏎bash -c "exit $RET" ¦ pytest a --exit=4⏎
rc=$?; export rc⏎pytest b⏎bash -c 'exit $rc'
RET=0⏎run() {⏎echo "@ $*"⏎"$@"⏎rc=$?⏎if [ $rc -ne 0 ]; then echo "@ no $* $rc"; RET=$rc; fi⏎}⏎run pytest a⏎
run pytest b --exit=3⏎run echo hi⏎run false⏎run pytest c⏎run pytest d⏎exit $RET
section() {⏎local name="$1"⏎shift⏎echo "@ ${name}"⏎if "$@"; then⏎N+=("${name}")⏎S+=("PASS")⏎else⏎N+=("${name}")⏎
S+=("FAIL")⏎fi⏎}⏎section one pytest c --exit=2⏎section two pytest d⏎section three false⏎section four pytest e⏎
for i in "${!N[@]}"; do echo "@ ${N[i]} ${S[i]}"; done⏎exit ${#N[@]}
cmd() { eval "$*" || { echo "@ cmd $*"; RET=9; }; }⏎cmd "pytest e --exit=4"⏎cmd "X=1 pytest f"⏎cmd "pytest g; X=7"⏎
cmd "pytest h --exit=2"⏎cmd "export Y=3"⏎exit $((RET + X + Y))
run() { "$@" || RET=1; }⏎run pytest a --exit=1⏎run eval RET=0⏎run pytest b⏎exit $RET ¦ run() { "$@"; }⏎
run pytest a --exit=1 || RET=3⏎run pytest b⏎exit $RET
run() { "$@"; }⏎two() { run pytest a --exit=1; run pytest b --exit=2; }⏎two⏎if ! two; then echo "@ two"; fi⏎two⏎
exit $? ¦ run() { "$@"; }⏎call() { run pytest a --exit=4; }⏎run call || exit 6
f() { pytest a --exit=$1; }⏎g() { f 2; }⏎f 1⏎g⏎echo "@ end"⏎h() { f 3; echo "@ h"; }⏎h⏎
h || echo "@ no" ¦ f() { pytest a --exit=$1; }⏎n=f⏎$n 3 || RET=2⏎f 2⏎exit $RET
set -e⏎run() { "$@"; echo "@ ran $1"; }⏎run pytest a⏎run pytest b --exit=3⏎echo "@ never" ¦ set -e⏎
f() { pytest a --exit=2 && echo "@ a"; }⏎g() { f; echo "@ g"; }⏎g || echo "@ no"⏎f⏎echo "@ never"
wrap() { pytest "$1"; }⏎main() { wrap "$@"; rc=$?; [ $rc -eq 0 ] || RET=1; }⏎RET=0⏎main --exit=3⏎exit $RET
RET=0⏎pytest a --exit=1; ((P+=$?)); ((F=3)); exit $F
pytest a --exit=1; rc=$?; [ $rc -eq 0 ] && echo "@ ok"; x=0; [ $rc -eq 0 ] || exit 3⏎exit 0
if pytest a --exit=1; then R=$'0'; else R=1; fi⏎exit $R
bye() { exit; }⏎pytest a --exit=3⏎bye
RET=0⏎check='[ $? -eq 0 ] || RET=1'⏎pytest a --exit=3⏎eval "$check"⏎exit $RET
RET=0⏎check() { [ $? -eq 0 ] || RET=1; }⏎fn=check⏎pytest a --exit=3⏎$fn⏎exit $RET
RET=0⏎eval 'check() { [ $? = 0 ] || RET=1; }'⏎pytest a --exit=1⏎check⏎exit $RET
RET=0⏎f_a() { pytest a --exit=3; }⏎for x in a; do f_$x || RET=1; done⏎exit $RET
RET=0⏎f() { pytest a --exit=3; }⏎eval "f || RET=1"⏎exit $RET
RET=0⏎builtin trap 'echo "@ err"; RET=1' ERR⏎pytest a --exit=3⏎pytest b⏎exit $RET
shopt -s expand_aliases⏎alias chk='[ $? -eq 0 ] || RET=1'⏎RET=0⏎pytest a --exit=3⏎chk⏎exit $RET
check() { [ $1 -eq 0 ] || echo "@ $NOPE"; }⏎set -u⏎pytest a --exit=1⏎check $?⏎echo "@ after"
pytest a && { echo "@ ok"; } > f.txt⏎echo "hello"⏎pytest b⏎cat f.txt
RET=0⏎check() { [ $? -eq 0 ] || { echo "@ bad"; RET=1; }; }⏎pytest a --exit=1; true; pytest a --exit=1; check⏎exit $RET
pytest a; rc=$?; pytest $'b' --exit=1; rc=$?; exit $rc
pytest a; rc=$?; false; rc=$?; exit $rc
pytest a; rc=$?; pytest b --exit=2 | (exit 3); rc=$?; exit $rc
RET=0⏎f() { pytest a --exit=3; }⏎eval 'g() { f || RET=1; }'⏎g⏎exit $RET
RET=0⏎run() { "$@"; rc=$?; [ $rc -eq 0 ] || { echo "@ bad $*"; RET=1; }; }⏎f() { pytest a --exit=3; }⏎run f⏎exit $RET
RET=0⏎run() { if "$@"; then echo "@ ok $*"; else echo "@ bad $*"; RET=1; fi; }⏎f() { pytest a --exit=3; }⏎run f⏎
exit $RET
RET=0⏎case x in x) pytest a --exit=1 ;& y) echo "@ $?" ;; esac⏎exit $RET
do_it() { pytest "$@"; }⏎main() { do_it "$@"; STATUS=$?; }⏎main --exit=3⏎exit $STATUS
RET=0⏎run_tests() { export X=1; pytest "$@"; }⏎if ! run_tests b --exit=1; then⏎  echo "@ FAILED"⏎  exit 1⏎fi⏎
echo "@ passed"
test_one() { echo "one"; OUT=x; pytest one --exit=2; }⏎test_two() { OUT=y; pytest two; }⏎
for t in test_one test_two; do⏎  if $t; then echo "@ ok $t"; else echo "@ FAIL $t"; F=$((F+1)); fi⏎done⏎exit $F
case_one() { pytest one --exit=2; }⏎for t in $(compgen -A function case_); do⏎  $t || F=$((F+1))⏎done⏎exit $F
shopt -s expand_aliases⏎alias go='f'⏎RET=0⏎f() { pytest a --exit=3; }⏎go || RET=1⏎exit $RET
pytest e --exit=5⏎cat <<X⏎@ $?⏎X⏎pytest b
n=0 T=(x --exit=2)⏎pytest ${T[n++]}; ra=$?⏎pytest ${T[n++]}; rb=$?⏎echo "@ $n"⏎exit $rb
t() { ((n++)); pytest "$1"; if [ $? -eq 0 ]; then echo "@ $1"; else ((f++)); echo "@ no $1"; fi; }⏎
t a; t --exit=2; t c; t --exit=1⏎echo "@ $n $f"⏎(( f == 0 ))
F=0 i=0⏎
while [[ $i -lt 3 ]]; do ((i++)); if pytest a --exit=$i; then [[ a = a ]]; else [[ $i -gt 1 ]] && F=$i; fi; done⏎exit $F
t() { (( $# )) || exit 3; pytest "$@"; rc=$?; ((rc == 0)) || F=1; }⏎t a⏎t⏎exit $F
check() { [ $1 -eq 0 ] || { echo "@ bad $2"; F=1; }; }⏎pytest a; check $? x; ls nosuch 2>/dev/null; check $? x⏎exit $F
command trap 'F=3' ERR⏎pytest a --exit=1⏎exit $F
RET=0⏎v=RE⏎pytest a --exit=1 || RET=1⏎[[ ${v}T -eq 0 ]] || exit 4⏎exit 0
for ((i = 0; i < 3; i++)); do pytest a$i; rc=$?; ((F += rc)); done⏎exit 0
if pytest a; then echo $'@ ok\t1'; else echo $'@ no'; fi⏎pytest b
RET=0⏎unit_tests() { N=1; pytest a --exit=2; }⏎check() { [ $1 -eq 0 ] || { echo "@ bad"; RET=1; }; }⏎unit_tests⏎
check $?⏎echo "@ end"⏎exit $RET
case_a() { pytest a --exit=1; }⏎case_b() { pytest b; }⏎for c in a b; do⏎  if ! case_$c; then F="$F $c"; fi⏎done⏎
[ -z "$F" ] || { echo "@ failed:$F"; exit 1; }
echo 'check() { [ $? -eq 0 ] || { echo "@ bad"; RET=1; }; }' >l.sh⏎RET=0⏎. ./l.sh⏎pytest a --exit=1⏎check⏎exit $RET
echo '[ $? -eq 0 ] || RET=1' >c.sh⏎RET=0⏎pytest a --exit=3⏎. ./c.sh⏎exit $RET
set -uo pipefail⏎P=0 F=0⏎
run() { "$@"; local rc=$?; if [ $rc -eq 0 ]; then P=$((P+1)); else F=$((F+1)); echo "@ $* $rc"; fi; }⏎run pytest a⏎
run pytest b --exit=2⏎if pytest d; then echo "@ d"; fi⏎pytest e --exit=3; s=$?⏎echo "@ $s $P $F"⏎exit $F
set -eE⏎on() { echo "@ at $1"; exit 7; }⏎trap 'on $LINENO' ERR⏎pytest a⏎pytest b --exit=2⏎pytest c
echo 'sleep 0.$1; echo "@ $1" >>seen.txt' >a_test.py⏎bash a_test.py 1⏎bash a_test.py 0⏎
for i in 2 1; do bash -c "sleep 0.$i; echo $i" tests/x >>log; done⏎sed 's/^/@ /' log
trap 'RET=1' RETURN⏎RET=0⏎f() { pytest a --exit=1; }⏎f⏎exit $RET
bash -c 'sleep 0.1; rmdir sub' tests/x || RET=1⏎if [ -d sub ]; then pytest b || RET=1; else RET=4; fi⏎exit $RET
RET=0⏎pytest a --exit=1 || RET=3⏎
for i in $([[ $RET == 0 ]] && echo 1 || echo 2 3); do pytest b --exit=$i || RET=$((RET+i)); done⏎exit $RET
pytest a --exit=1 || touch bad.mark⏎bash -c '[ ! -e bad.mark ]' tests/x || exit 4⏎exit 0
pytest a --exit=3 | tee x; if [ ${PIPESTATUS[0]} -ne 0 ]; then R=4; fi⏎pytest b | tee y; r=$PIPESTATUS⏎exit $R
set -eo pipefail⏎pytest a | cat⏎pytest b --exit=2 |&⏎  tee x | tail -1⏎pytest c | cat
shopt -s lastpipe⏎pytest a --exit=3 | read x⏎pytest b --exit=4 | tee y || R=1⏎echo "@ $x"⏎exit $R
for t in a b; do pytest $t --exit=2 | tee log⏎S=$S${PIPESTATUS[0]}${PIPESTATUS[1]}; done⏎echo "@ $S"⏎exit $S
set -u⏎«H»pytest "${A[@]/x/y}" "${RET:+$RET}" --exit=1 || test_fail a⏎pytest ${A[0]} || test_fail b⏎exit 0
RET=0⏎check() { [ $? -eq 0 ] || { echo "@ bad"; RET=1; }; }⏎for i in 0 3; do pytest a --exit=$i; done⏎check⏎
exit $RET ¦ RET=0⏎check() { [ $? -eq 0 ] || RET=1; }⏎f() { pytest a --exit=3; }⏎f⏎check⏎exit $RET ¦ RET=0⏎
check() { [ $? -eq 0 ] || RET=1; }⏎for i in 3 0; do check; pytest a --exit=$i; done⏎exit $RET ¦ pytest a --exit=3⏎
exit 2>/dev/null
set -- a b⏎pytest a --exit=1 || shift⏎exit $(($# - 2)) ¦ f() { pytest a --exit=1 || eval "return 4"; }⏎f⏎exit $?
f() { pytest a --exit=1 || \return 4; }⏎f ¦ pytest a --exit=1 || eval "declare F=3"⏎exit ${F:-0}
«H»«T»⏎unset -f test_fail⏎exit $RET ¦ set -e⏎pytest a --exit=1 || note a⏎note() { :; }⏎echo "@ end" ¦ RET=0⏎
note() { say "$@"; RET=1; }⏎pytest a --exit=1 || note a⏎say() { echo "@ late $1"; }⏎pytest b --exit=2 || note b⏎
exit $RET
RET=0 v=RE⏎pytest a --exit=1 || RET=1⏎let x=${v}T⏎exit $x ¦ v=RE⏎pytest a --exit=1 || RET=1⏎[ -v ${v}T ] && exit 4⏎
exit 0 ¦ RET=0⏎set -- RET⏎pytest a --exit=1 || RET=1⏎(( $1 )) && exit 4⏎exit 0 ¦ RET=0⏎e='0+RET'⏎
pytest a --exit=1 || RET=1⏎((e)) && r=4⏎e=⏎exit ${r:-0} ¦ w='$RE'; w+=T RET=0⏎pytest a --exit=1 || RET=1⏎x=${w@P}⏎w=⏎
[ $x = 0 ] || exit 4⏎exit 0 ¦ p='*.xml' n=0⏎bash -c 'sleep 0.1; echo x >a.xml' tests/x || RET=1⏎
for f in $p; do [ "$f" = a.xml ] && n=1; done⏎[ $n = 1 ] || exit 4
RET=0⏎chk-test() { [ $RET -eq 0 ]; }⏎pytest a --exit=1 || RET=1⏎chk-test || exit 4⏎exit 0 ¦ set -e⏎
run-all() { sub-all; }⏎sub-all() { pytest a --exit=1; echo "@ continues"; }⏎run-all || echo "@ bad"
RET=0⏎f() { pytest a --exit=3; }⏎. <(echo "f || RET=1")⏎exit $RET ¦ set -e⏎x=f⏎f() { pytest a --exit=1; echo "@ x"; }⏎
eval "$x" || echo "@ bad"
RET=0⏎builtin trap 'RET=1; echo "@ $FUNCNAME"' return⏎f() { pytest a --exit=1; }⏎f⏎exit $RET
echo 'chk() { ( exit $RET ) || exit 4; }' >l.sh; echo 'chk() { :; }' >sub/l.sh⏎. ./l.sh⏎cd sub⏎
pytest a --exit=1 || RET=1⏎chk⏎exit 0
bash -c 'sleep 0.1; echo "@ x"' tests/x >log || RET=1⏎echo "@ y" >&log⏎cat log
exec {fd}>x 7>y⏎pytest a >&$fd || RET=1⏎pytest b >/dev/fd/7 || RET=1⏎exit ${RET:-0}
set -u⏎A=(x)⏎pytest ${A[5]} || echo "@ bad"⏎exit 0 ¦ set -u⏎pytest --n=$((NOPE+1)) || echo "@ bad"⏎exit 0
test_fail() { echo "@ $((1/0))"; }⏎f() { pytest a --exit=1 || test_fail a; exit 0; }⏎f⏎exit 5 ¦ set -u⏎
trap 'echo "@ bye $?"' EXIT⏎pytest a --exit=1 || echo "@ $NOPE"⏎pytest b
while pytest a --exit=1; do exit 0; done; pytest a --exit=1 || RET=1⏎exit ${RET:-0} ¦ test_fail() { N=$((N+1)); }⏎
pytest a --exit=1; pytest a --exit=1 || test_fail a⏎exit $N ¦ pytest a b --exit=1⏎[ "$_" = --exit=1 ] || exit 4⏎
pytest b ¦ set -k⏎pytest a X=1 --exit=1 || RET=1⏎exit $RET ¦ builtin set -o keyword⏎pytest a X=1 --exit=1 || exit 4
RET=0⏎note() { cat $1; RET=1; }⏎bash -c 'echo "@ one" >log; exit 1' tests/x || note log⏎
bash -c 'sleep 0.1; echo "@ two" >log' tests/y || note log⏎exit $RET ¦ RET=0⏎trap 'RET=1' ERR⏎old=$(trap -p ERR)⏎
trap - ERR⏎pytest b⏎eval "$old"⏎pytest c --exit=1⏎exit $RET
trap 'echo "@ bye $?"; exit' EXIT⏎pytest a⏎pytest b --exit=4 ¦ set -- 0 y⏎trap 'exit $1' EXIT⏎
pytest a --exit=1 || exit 3⏎shift⏎pytest b ¦ trap 'echo "@ bye $?"; [ -z "$BAD" ] || exit' EXIT⏎
pytest a --exit=1 || BAD=1⏎pytest b
o=-f⏎bash -c 'sleep 0.1; echo x >made' tests/x || RET=1⏎[ $o made ] || exit 4⏎rm made⏎
bash -c 'sleep 0.1; echo x >made' tests/x || RET=1⏎[ "-f" made ] || exit 5
code=$'x=1\npytest a --exit=$x || exit 4'⏎x=0⏎eval "$code"⏎pytest a --exit=$x || RET=1⏎exit 0
shopt -s nullglob⏎bash -c 'sleep 0.3; echo x >a.xml' tests/a || exit 1⏎for f in *.xml; do cp $f last; done⏎
bash -c '[ ! -e last ]' tests/b || exit 1⏎(mkdir z; pytest c)
touch x⏎trap 'rm -f x' ERR⏎(bash -c 'sleep 0.3; exit 1' tests/a)⏎bash -c '[ -e x ]' tests/b⏎exit $?
trap 'exit 130' INT TERM⏎(cd sub && pytest a)⏎x=$(pytest b) ¦ set -E⏎trap 'echo "@ err"' ERR⏎(pytest a --exit=1)⏎exit 0
mkdir tests⏎ln -s $(command -v env) tests⏎trap 'echo "@ err"' ERR⏎IFS=: tests/env | grep -q ^IFS=: || exit 4⏎exit 0
set -Ee⏎on() { echo "@ $BASH_COMMAND"; }⏎trap on ERR⏎pytest a --exit=1
bash -c 'sleep 0.3; exit 1' tests/a⏎cd made && exit 0⏎bash -c 'mkdir made' tests/b⏎exit 1
f() { cd made; }⏎bash -c 'sleep 0.3; exit 1' tests/a⏎f && exit 0⏎bash -c 'mkdir made' tests/b⏎exit 1
bash -c 'sleep 0.3; exit 1' tests/a⏎(cd made) || BAD=1⏎bash -c 'mkdir made' tests/b⏎exit $BAD
bash -c 'sleep 0.3; exit 1' tests/a⏎X=$(cd made && echo y)⏎bash -c 'mkdir made' tests/b⏎[ "$X" = y ] || exit 4
«H»one() { bash -c 'echo x >>n' tests/r; }⏎two() { bash -c '[ -e t ] || { >t; sleep 0.3; exit 1; }' tests/a; }⏎one⏎
mkdir out⏎two || { one; two; } || test_fail a⏎bash -c '[ $(wc -l <n) -lt 2 ]' tests/b || test_fail b⏎exit $RET
D=$PWD⏎bash -c 'sleep 0.3; exit 1' tests/a⏎cd made || BAD=1⏎cd $D⏎bash -c 'mkdir made' tests/b⏎exit $BAD
if ! pytest a --exit=1; then RET=1; else RET=0; fi⏎exit $RET ¦ if pytest a --exit=1; then :; else :; fi && exit 4⏎exit 0
pytest a --exit=1⏎exit $CODE ¦ f() { pytest a --exit=3; return $rc; }⏎f || exit 4 ¦ code() { echo $?; }⏎
pytest a --exit=3⏎rc=$(code)⏎exit $rc ¦ if pytest a; then :; else rc=1; fi⏎exit $rc
RET=0⏎pytest a --exit=1 || RET=1⏎for t in $EXTRA; do :; done⏎for t in $RET; do [ $t = 0 ] || exit 4; done ¦ RET=0⏎
pytest a --exit=1 || RET=1⏎f() { :; }⏎( exit $RET ) || exit 4 ¦ RET=0⏎pytest a --exit=1 || RET=1⏎
case 0 in $RET) exit 0 ;; esac⏎exit 4
echo 'run() { "$@" || RET=1; }' >sub/lib.sh⏎RET=0⏎cd sub⏎. ./lib.sh⏎cd ..⏎run pytest a --exit=1⏎( exit $RET ) || exit 4
RET=0⏎f() { pytest a --exit=1 || RET=1; }⏎eval 'f⏎( exit $RET ) || exit 4'⏎exit 0 ¦ shopt -s expand_aliases⏎
alias check='( exit $RET )'⏎RET=0⏎pytest a --exit=1 || RET=1⏎check || exit 4⏎exit 0
RET=0⏎main() { exit $RET; }⏎pytest a --exit=1 || RET=1⏎main | cat⏎exit ${PIPESTATUS[0]} ¦ RET=0⏎
go() { [ $1 = 0 ] || exit 4; [ $2 = 0 ] || go $RET 0; }⏎pytest a --exit=1 || RET=1⏎go 0 1⏎exit 0
set -e⏎f() { trap 'echo "@ bye"' EXIT; trap - EXIT; }⏎f⏎f⏎pytest a --exit=1
pytest a --exit=1 || echo f >>failed⏎bash -c '[ ! -s failed ]' tests/b || exit 4⏎exit 0 ¦ set -e⏎
trap '[ ! -e done ] || exit 0' EXIT⏎pytest a --exit=1⏎bash -c 'echo x >done' tests/b
bash -c 'sleep 0.1; echo x >m.json' tests/a --out m.json⏎bash -c '[ -s m.json ]' tests/b m.json || exit 4⏎exit 0
bash -c 'sleep 0.1; echo bad' tests/a | tee u.log⏎bash -c '! grep bad u.log' tests/b u.log
note() { local s=$?; if [ $s -ne 0 ]; then S=$s; echo "@ $s"; fi; }⏎S=0⏎pytest a --exit=2⏎note⏎pytest b⏎note⏎exit $S
note() { if [ $? -ne 0 ]; then F=$((F+1)); fi; }⏎f() { pytest $1 --exit=$2; note; }⏎F=0⏎f a 1; f b 0; f c 2⏎exit $F
check() { [ $? -eq 0 ] || exit 7; }⏎pytest a⏎check⏎pytest b --exit=1⏎check⏎echo "@ on"⏎exit 0
check() { S=$?; return $S; }⏎pytest a --exit=1⏎check || exit 9⏎pytest b⏎check⏎exit $S
check() { echo "@ ${PIPESTATUS[0]} $1"; }⏎pytest a --exit=1 | tee l⏎check⏎pytest a --exit=3⏎check $?⏎exit 0
set -e⏎run() { "$@"; }⏎run bash -c 'sleep 0.1; echo x >m.json' tests/a --out m.json⏎
run bash -c '[ ! -s m.json ]' tests/b m.json⏎echo
O="m.csv" bash -c 'sleep 0.1; echo x >m.csv' tests/a⏎O=m.csv bash -c '[ ! -e m.csv ]' tests/b
bash -c 'sleep 0.1; echo x >m.csv' tests/a⏎bash -c '[ ! -e m.csv ]' tests/b
bash -c 'sleep 0.1; echo x' tests/a | sort -o m.csv⏎bash -c '[ ! -s m.csv ]' tests/b m.csv
set -e⏎run() { eval "$*"; }⏎run bash -c "'sleep 0.1; echo x >m.json'" tests/a --out m.json⏎
run bash -c "'[ ! -s m.json ]'" tests/b m.json⏎echo
make_it() { bash -c 'sleep 0.1; echo x >m.json' tests/a --out m.json; }⏎test_fail() { exit 4; }⏎
make_it || test_fail a⏎bash -c '[ ! -s m.json ]' tests/b m.json || test_fail b⏎exit 0
for i in 1 2; do pytest a$i --exit=1 || touch x$i.flag; for x in $(ls *.flag); do echo "@ $x"; pytest $x; done; done⏎
exit 0
ok() { [ "$1" "$2" ]; }⏎bash -c 'sleep 0.1; echo x >made' tests/x⏎ok -f made || exit 4⏎exit 0 ¦ P=("*.err")⏎
bash -c 'sleep 0.1; echo x >a.err' tests/x⏎for f in ${P[0]}; do [ $f = a.err ] && exit 4; done⏎exit 0 ¦ mkdir out⏎
bash -c 'sleep 0.1; rmdir out' tests/x⏎cd out || exit 4⏎exit 0
i=0⏎pytest --n=$(( (i++) )) || RET=1⏎pytest --n=$(( (i++) )) || RET=1⏎[ $i = 2 ] || exit 4
trap 'RET=1' USR1⏎export TOP=$$⏎
bash -c 'sleep 0.1; kill -USR1 $TOP' tests/x⏎[ -z "$RET" ] || exit 4⏎exit 0
RET=0⏎o=+T⏎set $o⏎f() { exit $RET; }⏎pytest a --exit=1 || RET=1⏎f ¦ RET=0⏎echo() ( exit $RET )⏎
pytest a --exit=1 || RET=1⏎echo || exit 4⏎exit 0
f() { pytest a --exit=1; }⏎eval f; [ $? -eq 0 ] || BAD=1; f; true⏎exit $BAD ¦ f() { pytest a --exit=1; }⏎
x=$'true\nf; [ $? -eq 0 ] || BAD=1'⏎eval "$x"⏎f; true⏎exit $BAD
pytest a --exit=1⏎case x in x) exit $E;; esac ¦ E=" "⏎f() { exit $E; }⏎pytest a --exit=1⏎f ¦ set -e⏎
trap 'false; exit 0' EXIT⏎pytest a --exit=1 ¦ set -e⏎trap '[ "$m" = soft ] && exit 0' EXIT⏎
f() { local m=soft; pytest a --exit=1; echo; }⏎f
f() { local a=($1); [ -z "${a[1]}" ] || exit 4; }⏎echo >a.err⏎
bash -c 'sleep 0.1; echo x >b.err' tests/x⏎f '*.err'⏎exit 0 ¦ F="summary.md *.err"⏎shopt -s nullglob⏎
bash -c 'sleep 0.1; echo x >b.err' tests/x⏎for p in $F; do [ $p = summary.md ] || exit 4; done⏎exit 0
C="-e made"⏎bash -c 'sleep 0.1; echo x >made' tests/x⏎if [ $C ]; then exit 4; fi
fail() { [ "$(cat made)" ] || RET=1; }⏎pytest a --exit=1 || fail⏎bash -c 'echo x >made' tests/x || fail⏎exit $RET
fail() { cd made || RET=1; }⏎pytest a --slow --exit=1 || fail⏎bash -c 'mkdir made' tests/x⏎exit $RET
fail() { set -- made*; [ "$1" = made1 ] || RET=1; }⏎pytest a --slow --exit=1 || fail⏎
bash -c 'echo >made1' tests/x⏎exit $RET ¦ fail() { for f in made*; do [ $f = made1 ] || RET=1; done; }⏎
pytest a --slow --exit=1 || fail⏎bash -c 'echo >made1' tests/x⏎exit $RET
look() { for f in out*; do [ $f = out1 ] || RET=4; done; }⏎pytest a --late --exit=1 || look⏎
bash -c ': >out1' tests/b --out m.csv⏎bash -c 'sleep 0.1; : >made' tests/c m.csv⏎look⏎exit $RET
look() { cd out && cd .. || RET=4; }⏎pytest a --late --exit=1 || look⏎
bash -c 'mkdir out' tests/b --out m.csv⏎bash -c 'sleep 0.1; : >made' tests/c m.csv⏎look⏎exit $RET
out() { for f in $FUNCNAME*; do [ $f = out1 ] || RET=4; done; }⏎pytest a --late --exit=1⏎out⏎
bash -c ': >out1; : >made' tests/x⏎exit $RET ¦ pytest a --late --exit=1⏎: out⏎
for f in ${_}*; do [ $f = out1 ] || RET=4; done⏎bash -c ': >out1; : >made' tests/x⏎exit $RET
fail() { . ./made || RET=1; }⏎pytest a --slow --exit=1 || fail⏎
bash -c 'echo >made' tests/x⏎exit $RET
if bash -c 'sleep 0.1' tests/x >log; then [ -f made ] || RET=1; fi⏎bash -c 'echo x >made' tests/y⏎exit $RET
SECONDS=100⏎pytest --exit=$((SECONDS>=100)) || RET=1⏎exit $RET ¦ set -o pipefail⏎export SHELLOPTS⏎
bash -c 'false | true' tests/x || RET=1⏎exit $RET ¦ IFS=$'\n\t'⏎unset HOME⏎bash -c '[ "$HOME" ]' tests/x || RET=1⏎
exit $RET
f() {⏎[ -d "$d" ] && H="$H $d"⏎}⏎bash -c 'sleep 0.1; mkdir core' tests/x⏎for i in sub sub core; do⏎d=sub⏎
[ -d "$d" ]⏎d=$i⏎f⏎done⏎[ "$H" = " sub sub" ]
echo 'f() { pytest a --exit=1 || RET=1; }' >sub/l.sh⏎echo 'g() { pytest a --exit=1 || true; }' >l.sh⏎cd sub⏎. ./l.sh⏎
cd ..⏎. ./l.sh⏎f⏎exit $RET
set -o posix⏎alias echo='[ $? = 0 ] || BAD=1; echo'⏎pytest a --exit=1⏎echo "@ hi"⏎exit $BAD
set -o posix⏎x=1⏎set -e⏎pytest a --exit=1⏎echo never ¦ note_fail() { N=1; }⏎
while read -r n; do pytest a --exit=1 || note_fail b; done <<< 1⏎pytest a --exit=2 || note_fail a⏎
echo "@ ${PIPESTATUS[*]}"
F=()⏎add() { local -n l=$1; l+=(x); }⏎pytest a --exit=1 || add F⏎for x in "${F[@]}"; do exit 4; done⏎exit 0
note() { declare -g "$1=bad"; }⏎pytest a --exit=1 || note R⏎for x in $R; do exit 4; done⏎exit 0
f() { bash -c "exit $((${#FUNCNAME[@]} - 1))" tests/x; }⏎f || RET=1⏎exit $RET ¦ f() { sleep 0 & pytest a; }⏎
f || RET=1⏎[ -z "$!" ] || exit 4⏎exit 0
f() { local rc=0; pytest a --exit=1 || rc=1; pytest b || rc=1; return $rc; }⏎f || exit 4
f() { local rc=0; pytest a --exit=1 || rc=1; [ -z "$rc" ] && return; pytest b; }⏎f⏎exit 0
f() { local rc=0; pytest a --exit=1 || rc=1; [ -n "$Q" ] || return; exit $rc; }⏎f || exit 4⏎exit 0
set -e⏎run() { if [ "$1" = no ]; then return; fi; pytest "$@"; }⏎run a --exit=1⏎run b⏎echo "@ end"
run() { eval "$*" || RET=1; }⏎run "pytest a --slow --exit=1 &"⏎wait $! || exit 4⏎exit 0
run() { eval "$*" || RET=1; }⏎i=0⏎run 'pytest --n=$((i++))'⏎run pytest b⏎[ $i = 1 ] || exit 4⏎exit 0
set -- '*.err'⏎bash -c 'sleep 0.1; echo x >a.err' tests/x⏎for f in $1; do [ $f = a.err ] && exit 4; done⏎exit 0
bash -c 'sleep 0.1; echo x >a.err' tests/x⏎for f in $(echo *.err); do [ $f = a.err ] && exit 4; done⏎exit 0
«H»«T»⏎((echo "@ $RET") && true)⏎exit $RET
pytest a --exit=1 || ( exit 3 )⏎[ $? = 3 ] || exit 4⏎exit 0 ¦ pytest a --exit=1 || echo "@ $LINENO"⏎pytest b
x=break⏎for i in 1 2; do pytest a --exit=1 || $x; done⏎echo "@ $i"
pytest a --exit=1 --junitxml=$(echo x; echo y >>z).xml || RET=1⏎[ "$(cat z)" = y ] || exit 4⏎exit $RET
readonly x=1⏎f() { local x=2; }⏎set -e⏎pytest a --exit=1 || f⏎exit 0
test_f() { [ $? = 0 ] || echo "@ no"; pytest a; }⏎pytest x --exit=1⏎test_f⏎exit 0
trap 'echo "@ ${LINENO:-x}"' ERR⏎pytest a --exit=1⏎exit 0 ¦ set -x⏎trap 'echo "@ x"' ERR⏎pytest a --exit=1⏎exit 0
set -u⏎trap 'echo "@ $x"' ERR⏎pytest a --exit=1⏎exit 0
echo 'pytest ${BASH_SOURCE[1]} || RET=1' >b.sh⏎. ./b.sh⏎pytest c⏎exit $RET
«H»pytest a --exit=1 || test_fail "$(echo y >>z; echo a)"⏎[ "$(cat z)" = y ] || exit 4⏎exit $RET
f() { bash -c 'read x; [ "$x" = 1 ]' tests/a || exit 4; }⏎f <<<1⏎exit 0
set -E⏎trap 'echo "@ x"' ERR⏎test_f() { bash -c 'exit 1'; true; }⏎test_f⏎exit 0
trap 'echo "@ ${PIPESTATUS[*]}"' ERR⏎set -o pipefail⏎pytest a --exit=3 | tee x⏎exit 0
pytest a --exit=3⏎(exit $N) || exit 4⏎exit 0 ¦ pytest a --exit=1⏎x=$(exit $N)⏎exit
pytest a --exit=3⏎exit $N | cat⏎exit ${PIPESTATUS[0]} ¦ pytest b⏎pytest a --exit=1⏎rc=$?⏎exit $rc
printf '1\n2\n' >in⏎printf 'read x && exit 7; exit 0' >log⏎chmod +x log⏎
while read t; do pytest $t --exit=$t || { ./log || R=$?; }; done <in⏎exit $R
pytest a --exit=1 | tee a.log && rc=${PIPESTATUS[0]}⏎exit ${rc:-0}
printf '[ ! -e a.done ]' >test_c⏎chmod +x test_c⏎pytest a && touch a.done⏎./test_c || RET=1⏎exit $RET
printf '! grep -q 0 sums' >test_c⏎chmod +x test_c⏎pytest a; echo $? >sums⏎./test_c || RET=1⏎exit $RET
printf '1\n2\n' >in⏎n=0⏎while read t; do n=$((n+1)); pytest $t --exit=1 || tr a b; done <in⏎exit $((n-1))
a='b[$?]' b=(0 7 7 7)⏎pytest a --exit=3 || { RET=1; [ x = y ]; }⏎exit $((a))
t=("pytest a" "pytest b --exit=2") n=0⏎while [ $n -lt 2 ]; do eval "${t[n++]}" || RET=1; done⏎exit $RET
a=(3 0) i=0⏎pytest a || F=1⏎exit ${a[i++]}
trap 'R=$?; ./log "@ $R"' ERR⏎printf 'echo "$*"' >log⏎chmod +x log⏎pytest a --exit=1⏎pytest b⏎exit $R
pytest b⏎[ $? -ne 0 ] && N=4⏎exit $N ¦ pytest b⏎rc=$?⏎(( rc )) && N=4⏎exit $N
if pytest a; then [ $N ] && echo 1; else N=1; fi⏎exit $N ¦ t() { pytest b; (( $? )) && N=4; return $N; }⏎t || exit 3
export X⏎f() { local X=$1; bash -c '[ "$X" != bad ]' tests/x; }⏎«H»f bad || test_fail bad⏎exit $RET
mkdir d⏎cd d⏎printf '[ ! -e d ]' >../test_x⏎chmod +x ../test_x⏎rm -r ../d⏎../test_x || R=1⏎exit $R
mkdir d e⏎ln -s d f⏎cd f⏎printf 'exit 1' >test_x⏎: >../e/test_x⏎chmod +x test_x ../e/*⏎ln -sfn e ../f⏎
./test_x || R=1⏎exit $R
printf '[ -e made ]' >test_f⏎printf 'for i in {1..25}; do [ ! -e made ] || break; sleep 0.02; done; exit 1' >test_a⏎
chmod +x test_?⏎/bin/true⏎./test_a || ./test_f || exit 3⏎bash -c ': >made' tests/c⏎exit 0
printf '[ "$M" != b ]' >test_e⏎chmod +x test_e⏎f() { local M; ./test_e; }⏎export M=a⏎f || exit 1⏎M=b⏎f || exit 4⏎exit 0
pytest a⏎pytest() { return 3; }⏎pytest b || exit 4⏎exit 0 ¦ pytest a {fd}>f⏎[ "$fd" ] || exit 4⏎exit 0
printf 'grep -q pytest && exit 7; exit 0' >test_c⏎chmod +x test_c⏎pytest a | ./test_c || exit 4⏎exit 0
printf '#!/bin/bash\nfalse; exit 0' >test_e⏎chmod +x test_e⏎set -e⏎export SHELLOPTS⏎./test_e || exit 4⏎exit 0
set -e⏎trap 'false' USR1⏎export P=$$⏎bash -c 'kill -USR1 $P; sleep 0.1' tests/a⏎exit 0
trap 'pytest c --exit=3; exit' EXIT⏎trap : TERM⏎pytest a || R=1⏎exit $R
set -o pipefail⏎echo x | bash -c 'read -r x && [ "$x" = x ] && exit 3' tests/x || exit 4⏎exit 0
«H»/usr/bin/cat none || test_fail a⏎exit $RET ¦ «H»set -a⏎pytest a || test_fail a⏎env >env⏎! grep _rt_ env⏎exit $RET
trap 'kill 0' EXIT⏎pytest a || R=1⏎exit $R ¦ trap 'kill -HUP $$; echo "@ x"' EXIT⏎pytest a⏎pytest b --exit=1
D="a b"⏎mkdir "$D"⏎printf '[ -e made ]' >"$D/test_f"⏎printf ': >made' >"$D/test_a"⏎: >"$D/test_c"⏎chmod +x "$D"/*⏎
/bin/true⏎"$D/test_c" || R=3⏎"$D/test_f" || R=4⏎"$D/test_a" || R=5⏎exit $R
echo 1 >n⏎let "n = $(cat n)"⏎for ((i=0;i<n;i++)); do pytest a --exit=1 || exit 3; done⏎pytest b⏎exit 0
printf '[ ! -e made ]' >test_f⏎chmod +x test_f⏎if pytest a --late | grep -q no; then :; else ( : >made ); fi⏎
./test_f || exit 4⏎exit 0
printf '[ ! -e made ]' >test_f⏎chmod +x test_f⏎trap ': >made' ERR⏎pytest a --late | grep -q no⏎./test_f || exit 4⏎exit 0
exec 3>made⏎printf '! grep -q x made' >test_f⏎chmod +x test_f⏎pytest a --late --exit=1 || echo x >&3⏎./test_f || exit 4⏎
exit 0
exec 10>made⏎printf '! grep -q x made' >test_f⏎chmod +x test_f⏎bash -c 'sleep 0.3; exit 1' tests/a || echo x >&10⏎
./test_f || exit 4⏎exit 0 ¦ bash -c 'sleep 0.3; [ -e made ]' tests/a || exit 4⏎command -v ls >made⏎exit 0
«H»suite() { bash -c 'echo $1' tests/x "$1"; }⏎echo old >log⏎bash -c 'sleep 0.3; ! grep old log' tests/a || test_fail a⏎
suite b >log || test_fail b⏎exit $RET
«H»suite() { bash -c "sleep 0.3; echo $1" tests/x; }⏎echo 1 >log.2⏎f() { suite $1 | tee log.$1 || test_fail a; }⏎f 2⏎
bash -c '! grep 2 log.2' tests/b log.2 || test_fail b⏎exit $RET
trap 'echo "@ e"; continue' ERR⏎for t in 0 1 0; do pytest a --exit=$t; done⏎pytest b⏎pytest c⏎exit 0
b() { bash -c 'if [ -e n ]; then echo 2 >m.csv; else echo 1 >m.csv; : >n; exit 1; fi' tests/b --out m.csv; }⏎
bash -c 'sleep 0.5' tests/a⏎b || b || exit 3⏎bash -c '! grep 2 m.csv' tests/c m.csv || exit 4⏎exit 0
echo 1 >m.csv⏎bash -c 'sleep 0.3; grep 2 m.csv' tests/a m.csv || exit 4⏎
bash -c 'echo 2 >m.csv' tests/b --out m.csv⏎exit 0
trap 'true | true' ERR⏎( pytest a --exit=1 )⏎[ x = x ] && exit 5⏎exit 0 ¦ trap 'true | true' ERR⏎
(bash -c 'sleep 0.3; exit 1' tests/a)⏎bash -c '[ -e n ] || { : >n; exit 1; }' tests/b || exit 4⏎exit 0
f() { trap ': >made' $1; }⏎bash -c 'sleep 0.3' tests/a⏎( f EXIT )⏎bash -c '[ ! -e made ]' tests/b || exit 4⏎exit 0
: >made⏎bash -c 'sleep 0.3' tests/a⏎trap 'rm -f made' CHLD⏎(:)⏎bash -c '[ -e made ]' tests/b || exit 4⏎exit 0
bash -c 'sleep 0.3; echo bad' tests/a | awk '{ print >"made" }'⏎bash -c '[ ! -e made ]' tests/b || exit 4⏎exit 0
bash -c 'sleep 0.3; echo bad' tests/a | sed 'w made'⏎bash -c '! grep bad made' tests/b || exit 4⏎exit 0
trap ': >made' USR1⏎export P=$$⏎bash -c 'sleep 0.3; kill -USR1 $P' tests/a⏎
bash -c '[ ! -e made ]' tests/b || exit 4⏎exit 0
: >made⏎f() { rm made; }⏎bash -c 'sleep 0.3' tests/a⏎echo "$(f)"⏎bash -c '[ -e made ]' tests/b || exit 3
: >made⏎has() { [ "$@" ]; }⏎bash -c 'sleep 0.3; rm made' tests/a⏎has -e made && bash -c ': >extra' tests/x⏎
bash -c 'sleep 0.1; [ -e extra ]' tests/b || exit 4⏎exit 0
unset LINENO⏎pytest a --exit=3 || exit 4
mkdir tests⏎echo 'exit 1' >tests/x⏎chmod +x tests/x⏎trap 'exit $RET' EXIT⏎RET=0⏎shopt -so posix⏎tests/x || RET=4
mkdir tests⏎echo 'exit 1' >tests/x⏎chmod +x tests/x⏎trap 'exit $RET' EXIT⏎RET=0⏎
export POSIXLY_CORRECT=1⏎tests/x || RET=4
pytest a --exit=1 || N=`expr ${N:-0} + 1`⏎pytest b⏎for i in `seq 1 $N`; do pytest c --exit=1 || N=$((N+2)); done⏎exit $N
: >made⏎bash -c 'sleep 0.3' tests/a⏎printf '%s\n' b a | sort >made⏎bash -c '[ ! -s made ]' tests/b || exit 4⏎exit 0
printf '[ ! -e made ]' >test_b⏎chmod +x test_b⏎bash -c 'sleep 0.3' tests/a⏎echo b=1 | tee made⏎./test_b || exit 4⏎exit 0
printf '[ ! -e made ]' >test_b⏎chmod +x test_b⏎bash -c 'sleep 0.3' tests/a⏎
for i in 1 2; do echo $i; done | sed s/1/3/ >made⏎./test_b || exit 4⏎exit 0
printf '[ ! -e made ]' >test_b⏎chmod +x test_b⏎f() { echo b=$1; }⏎bash -c 'sleep 0.3' tests/a⏎f 1 | tee made⏎
./test_b || exit 4⏎exit 0
echo no >made⏎bash -c 'sleep 0.3' tests/a⏎echo "$(cat made)" | awk '/no/ { exit 1 }' || R=4⏎
bash -c 'echo yes >made' tests/b⏎exit $R
{ bash -c 'sleep 0.4; : >made' tests/a & bash -c 'sleep 0.1' tests/b & wait; } | tee log⏎
bash -c '[ ! -e made ]' tests/c || exit 4⏎exit 0
(⏎bash -c 'sleep 0.4; : >made' tests/a &⏎wait⏎)⏎bash -c '[ ! -e made ]' tests/b || exit 4⏎exit 0
assert() { test "$@" || R=4; }⏎bash -c 'sleep 0.3' tests/a⏎assert -e made⏎bash -c ': >made' tests/b⏎exit $R
ok() { [ "$1" "$2" ]; }⏎pytest a --late --exit=1 || ok -e made || R=4⏎bash -c ': >made' tests/b⏎exit $R
git init -q .; echo a >made; git add made; rm made⏎bash -c 'sleep 0.3' tests/a⏎echo "git: $(git checkout made 2>&1)"⏎
bash -c '[ ! -e made ]' tests/b || exit 4⏎exit 0
exec 3>made⏎X=1⏎bash -c 'sleep 0.3' tests/a⏎declare -p X >&3⏎bash -c '[ ! -s made ]' tests/b || exit 4⏎exit 0
shopt -s nullglob extglob⏎: >x.err⏎bash -c 'sleep 0.3' tests/a⏎A=(@(x|y).err)⏎[ -z "$A" ] || R=4⏎
bash -c 'rm *.err' tests/b⏎exit $R
"""


# What stands between tests that all pass: nothing has gone ahead of it.
PASSING = r"""
echo "v: $(cat v.txt) $(ls | wc -l)" ¦ echo "$(./tool)" ¦ x=$(./tool) ¦ echo "$(for i in 1 2; do cat v.txt; done)"
gv() { echo "$(date)"; cat v.txt; }⏎echo "v $(gv)"; (ls)
x=$(cat v.txt) ¦ (cd sub && ls) ¦ ( cat v.txt ) ¦ for f in $(ls); do :; done ¦ for f in *.txt; do echo $f; done
if [ "$(cat v.txt)" = 1 ]; then echo ok; fi ¦ [ -f v.txt ] && echo yes ¦ f() { cat v.txt; }⏎z=$(f) ¦ cd sub; cd ..
log() { echo "$(date +%Y): $*"; }⏎log "$(cat v.txt)" ¦ source ./common.sh ¦ . "$(dirname "$0")/common.sh"
DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) ¦ start=$(date +%s); took=$(($(date +%s) - start + SECONDS))
while read -r l; do echo $l; done < <(cat v.txt) ¦ : "${JOBS:=$(nproc)}" ¦ a=(*.txt); echo ${#a[@]} ¦ set -- *.txt
command -v pytest >/dev/null ¦ { cat v.txt; ls; } | wc -l ¦ case $(cat v.txt) in 1) echo l;; esac
eval "x=1; cat v.txt" ¦ trap 'cat v.txt' EXIT ¦ (cat v.txt) & wait ¦ grep -q nope v.txt || true
rapids-logger() { echo "$1"; }⏎rapids-logger "$(ls)" ¦ f() { :; }⏎f v* "$(cat v.txt)" ¦ for i in $(seq 2); do :; done
exec 3>x; exec 2>err.log ¦ export "V=$(cat v.txt)" ¦ set -- $(cat v.txt)⏎pytest d $1
export $(cat common.sh)⏎pytest d $x ¦ r() { local -n n=$1; n=$(cat v.txt); }⏎r W⏎pytest d $W
r() { "$@"; }⏎r source ./common.sh⏎pytest d $x ¦ r() { "$@"; }⏎r export W=1⏎r eval "pytest d"⏎pytest d $W
r() { pytest d "$1"; }⏎r x.$$ ¦ for x in $$; do pytest d $x; done
tests/r.sh() { pytest d "$1"; }⏎tests/r.sh x.$$
tests/r.sh() { pytest d "$@"; }⏎bash -c 'sleep 0.3; : >d.x' tests/e pytest d⏎tests/r.sh d.*
s() ( trap 'rm -f x' EXIT; pytest d )⏎s ¦ (trap 'rm -f x' 0 1; pytest d)
pytest d m.csv --late & pytest d m.csv &⏎[[ -d repo ]] || { mkdir repo; bash -c 'sleep 0.5'; }
pytest d m.csv --late & pytest d m.csv &⏎if [[ ! -d repo ]]; then mkdir repo; bash -c 'sleep 0.5'; fi
f() { if [ -f nope ]; then pytest x; fi; }⏎f ¦ f() { while [[ -f nope ]]; do pytest x; done; }⏎f
f() { [ -f nope ]; }⏎g() { if f; then pytest x; elif x=$(cat nope); then pytest x; fi; }⏎g
f() { ! grep -q nope v.txt; }⏎g() { if f; then pytest d; fi; }⏎g ¦ f() { ! ls | grep -q nope; }⏎f && pytest d
! [[ -f nope ]] || pytest x ¦ if ! [[ -f v.txt ]]; then pytest x; else pytest d; fi ¦ ! (( $(cat v.txt) )) || pytest d
f() { if grep -q 1 v.txt; then :; fi; grep -q 1 v.txt; }⏎f && pytest d
f() { if ! cat nope; then pytest d; fi; }⏎f ¦ f() { until grep -q 1 v.txt; do pytest x; done; }⏎f && pytest d
"""


@unittest.skipIf(ONE_SCRIPT, "one of the others is asked for")
class PassingScripts(ScriptCertainty):
    """Where no test fails, none is told to have gone ahead."""

    def test_no_failure_is_lost(self) -> None:
        first = "echo 1 >v.txt⏎mkdir sub⏎echo x=1 >common.sh⏎printf 'echo hi' >tool⏎chmod +x tool⏎pytest a⏎"
        idioms = PASSING.strip("\n").replace("\n", " ¦ ").split(" ¦ ")
        texts = [f"{first}{idiom}⏎pytest b⏎pytest c⏎exit 0\n".replace("⏎", "\n") for idiom in idioms]
        scripts = [Script(number, {"test.sh": text}) for number, text in enumerate(texts, 1)]
        with ThreadPoolExecutor(WORKERS) as pool:
            for idiom, ran in zip(idioms, pool.map(lambda script: self.check(script, (4,)), scripts)):
                with self.subTest(idiom):
                    self.assertEqual(ran, ([], False, 3 + idiom.count("pytest d")))


@unittest.skipIf(ONE_SCRIPT, "one of the others is asked for")
class FixedScripts(ScriptCertainty):
    """Each of them on four slots, or on one, where CERTAIN is set, as where .ci/run runs them again."""

    def test_no_failure_is_lost(self) -> None:
        files = "mkdir tests\necho 'echo x >made' >tests/one.sh\necho 'echo no >&2' >tests/err.sh\nchmod +x tests/*\n"
        plain = {"«T»": "pytest a --exit=1 || test_fail a", "⏎": "\n", "«F»": files,
                 "«H»": 'test_fail() { echo "@ $1"; RET=1; }\nRET=0\n'}
        text = FIXED.strip("\n").replace("⏎\n", "⏎").replace("\n", " ¦ ")
        for short, meant in plain.items():
            text = text.replace(short, meant)
        scripts = [Script(number, {"test.sh": each + "\n"}) for number, each in enumerate(text.split(" ¦ "), 1)]
        slots = 1 if "CERTAIN" in os.environ else 4
        with ThreadPoolExecutor(WORKERS) as pool:
            for script, ran in zip(scripts, pool.map(lambda script: self.check(script, (slots,)), scripts)):
                with self.subTest(script.files["test.sh"]):
                    self.assertEqual(ran[0], [])
