#!/bin/bash
# A CI script as many repositories have one; nothing in it knows of the runner. From the root of the repository:
#
#   bash qa/L0_script/test.sh                                                  one test after another
#   CUDA_VISIBLE_DEVICES=0,1,2,3 python3 run_tests.py qa/L0_script/test.sh     the same on four slots

function error_exit() {
    echo "Error: $1"
    exit 1
}

function test_fail() {
    RET=1
    FAILED_CASES="$FAILED_CASES $1"
    echo "Error: sub-test failed: $1"
}

RET=0
FAILED_CASES=""

cd "$(dirname "$0")/../L0_demo" || error_exit "The demo's tests are not there"
export PYTHONDONTWRITEBYTECODE=1
: ${DEMO_TENTH_S:=0.1}                          # DEMO_TENTH_S=1 stretches the demo, to watch it
export DEMO_TENTH_S

set -x

python3 -c "import unittest" || error_exit "No unittest"

python3 -m unittest test_demo.Numerics || test_fail "numerics"
python3 -m unittest test_demo.Attention || test_fail "attention"
for dtype in float32 float16; do
    DEMO_DTYPE=$dtype python3 -m unittest test_demo.Recipe \
        || test_fail "recipe $dtype"
done
python3 -m unittest test_demo.Kernels || test_fail "kernels"
python3 -m unittest test_demo.Tokenizer || test_fail "tokenizer"    #: gpus=0

if [ ! -f test_demo.py ]; then
    python3 -c "print('nothing to prepare')" || error_exit "Failed to prepare the checkpoint"
fi
python3 -m unittest test_demo.Checkpoint || test_fail "checkpoint"
CUDA_VISIBLE_DEVICES=0,1 python3 -m unittest test_demo.Model || test_fail "model on two GPUs"

if [ "$RET" -ne 0 ]; then
    echo "Error in the following test cases:$FAILED_CASES"
    exit 1
fi
echo "All tests passed"
exit 0
