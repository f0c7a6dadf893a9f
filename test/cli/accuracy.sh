#!/bin/bash
# What the shipped configurations learn: mean evaluation accuracy of three seeds, on one and on two devices. The bounds lie a few
# points below what was recorded (digits 0.95, lenet 0.86).
set -u
cd "${DP_ROOT:-.}" || exit 1
dptrain=${1:-build/dptrain}
[ -z "${DP_SANITIZER:-}" ] || { echo "skipped accuracy: under a sanitizer"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
for row in "digits 88" "lenet 82"; do
    set -- $row
    for devices in cpu:0 cpu:0,cpu:1; do
        for seed in 1 2 3; do
            "$dptrain" "tools/configs/$1.ini" run.seed=$seed devices.use=$devices devices.threads=1 run.dir="$work/run" run.overwrite=1 \
                run.save_every=0 2>&1 | sed -n 's/^epoch.*evaluation loss.*accuracy \([0-9.]*\) %.*/\1/p' | tail -n 1
        done > "$work/accuracy"
        if awk -v want="$2" '{ sum += $1 } END { exit !(NR == 3 && sum / NR >= want) }' "$work/accuracy"; then
            echo "ok $1 on $devices"
        else
            echo "not ok $1 on $devices: wanted a mean of $2 %, found" $(cat "$work/accuracy")
            bad=1
        fi
    done
done
exit $bad
