#!/usr/bin/env bash
# waves.sh GPUS FILE: the loop that many CI scripts have, as a peer to measure. FILE has lines `need<TAB>command`.
# Tests are launched until one finds too few GPUs left; it waits until all that were launched have ended, the slowest
# of them too. A test of no GPU joins the wave that is under way, which is best for this loop. Exit status 1 if a test
# failed.
set -u
gpus=$1 taken=0 failed=0 wave=()
mapfile -t ids < <(seq 0 $((gpus - 1)))

end_wave() {
    local pid
    for pid in "${wave[@]}"; do
        wait "$pid" || failed=1
    done
    wave=()
    taken=0
}

while IFS=$'\t' read -r need command; do
    [ $((taken + need)) -le "$gpus" ] || end_wave
    mask=$(IFS=,; echo "${ids[*]:taken:need}")
    CUDA_VISIBLE_DEVICES=$mask bash -c "$command" </dev/null &
    wave+=("$!")
    taken=$((taken + need))
done <"$2"
end_wave
exit "$failed"
