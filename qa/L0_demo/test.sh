#!/usr/bin/env bash
# The demo as a CI calls it. Arguments go to the runner; paths in them are relative to the root of the repository.
cd "$(dirname "$0")/../.." || exit 1     # the list's own paths start there
exec python3 run_tests.py qa/L0_demo/tests.txt "$@"
