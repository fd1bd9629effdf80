#!/usr/bin/env bash
# TransformerEngine's L0 PyTorch tests on all GPUs: what a CI calls in place of the script that this list replaces.
# Arguments go to the runner. It runs in the caller's directory, as that script does.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
export XML_LOG_DIR=${XML_LOG_DIR:-/logs}  # the runner's log dir; the list names TE_PATH's default itself

pip3 install pytest==8.2.1 || { echo "Error: Failed to install pytest"; exit 1; }
exec python3 "$here/../../run_tests.py" "$here/tests.txt" "$@"
