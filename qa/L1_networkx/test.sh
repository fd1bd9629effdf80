#!/usr/bin/env bash
# networkx's test suite through the runner, as a CI calls it. Arguments go to the runner.
# VENV names the virtual environment that it makes once and keeps; the pins are the newest that Python 3.8 can have.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
VENV=${VENV:-$root/.venv/networkx}

fail() { echo "Error: $1"; exit 1; }
[ -x "$VENV/bin/pip" ] || python3 -m venv "$VENV" || fail "Failed to make $VENV"
"$VENV/bin/pip" install --quiet --disable-pip-version-check networkx==3.1 pytest==8.3.5 ||
    fail "Failed to install networkx"
NETWORKX=$("$VENV/bin/python" -c 'import os, networkx; print(os.path.dirname(networkx.__file__))') || fail "No networkx"
export NETWORKX

# The list starts its tests in NETWORKX: that is pytest's root too, whatever configuration lies above the environment,
# and no cache is written there.
exec python3 "$root/run_tests.py" --python "$VENV/bin/python" --pytest-args "-p no:cacheprovider --rootdir=." \
    "$root/qa/L1_networkx/tests.txt" "$@"
